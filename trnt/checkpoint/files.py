"""Folders that are there whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trnt.errors import TrntError, UsageError


def sync_folder(folder: Path) -> None:
    """Force a folder's files and the folder itself to disk."""
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def new_folder(target: Path, *, force: bool) -> Iterator[Path]:
    """A folder to fill; it takes its name `target` when the block ends well, and vanishes when it does not.

    Raises UsageError when `target` exists and `force` is not given; with it, the old one is kept until then.
    Raises TrntError when the disk refuses.
    """
    if (target.exists() or target.is_symlink()) and not force:
        raise UsageError(f"{target} exists already", "use --force to replace it, or name another folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        partial.chmod(0o755)
    except OSError as error:
        raise TrntError(f"cannot write beside {target}: {error.strerror}", "name another folder") from None
    try:
        yield partial
        sync_folder(partial)
        old = target.with_name(f".{target.name}.old-{os.getpid()}")
        if target.exists():
            os.replace(target, old)
        os.replace(partial, target)
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise TrntError(f"could not write {target}: {error.strerror or error}", "free some disk space") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
