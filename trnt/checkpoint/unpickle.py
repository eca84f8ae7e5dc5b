"""Reading a DCP folder's `.metadata`, which is a pickle, without running what a pickle could run.

Only the classes that `torch.distributed.checkpoint` itself writes are allowed; the list is complete for files that
`dcp.save` makes (tried on torch 2.13).
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from trnt.errors import TrntError

FILESYSTEM = "torch.distributed.checkpoint.filesystem"
METADATA = "torch.distributed.checkpoint.metadata"
ALLOWED: dict[str, set[str]] = {
    "torch": {"Size", "device"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath", "PurePath", "WindowsPath", "PureWindowsPath"},
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},  # Python 3.13 on
    FILESYSTEM: {"_StorageInfo", "_StoragePrefix"},
    METADATA: {
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "_MEM_FORMAT_ENCODING",
    },
}


class _Refused(Exception):
    pass


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import torch

        if name in ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise _Refused(f"{module}.{name}")


def read_metadata(path: Path) -> Any:
    """The `Metadata` in a `.metadata` file. Raises TrntError for a file that cannot be read or asks for more."""
    from torch.distributed.checkpoint.metadata import Metadata

    try:
        found = _Unpickler(io.BytesIO(path.read_bytes())).load()
    except _Refused as error:
        raise TrntError(
            f"{path} asks for {error}, which no checkpoint needs: refused, nothing of it was run",
            "use a checkpoint from a source you trust",
        ) from None
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TrntError(f"cannot read {path}: {said}", "use another checkpoint") from None
    if not isinstance(found, Metadata):
        raise TrntError(f"{path} holds no checkpoint metadata", "use another checkpoint")
    return found
