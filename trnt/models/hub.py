"""A Hugging Face folder by its path, or a Hub id that is downloaded once, with progress, and resumed when cut off."""

from __future__ import annotations

import re
from pathlib import Path

from trnt import console
from trnt.errors import TrntError, UsageError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
WANTED = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "LICENSE*", "README.md"]
LEGACY = ["pytorch_model*.bin"]


def resolve(name: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """The folder that `name` means: a path that exists, else a Hub id, of which the weights may be left out.

    Raises UsageError for what is neither, TrntError when the download fails.
    """
    path = Path(name).expanduser()
    if path.exists():
        if not path.is_dir():
            raise UsageError(f"{name} is a file", "name the folder that holds it")
        if revision is not None:
            raise UsageError(f"--revision is for Hub ids, and {name} is a folder", "leave --revision out")
        return path
    if not HUB_ID.fullmatch(name) or name.startswith((".", "/")):
        raise UsageError(f"no folder {name}", "name a folder that exists, or a Hub id such as Qwen/Qwen3-0.6B")
    return download(name, revision, weights=weights)


def download(hub_id: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """The snapshot of a Hub repository in the Hub's own cache, perhaps without its weights.

    Raises TrntError with one line and a fix.
    """
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        wanted = WANTED if weights else [pattern for pattern in WANTED if "safetensors" not in pattern]
        if constants.HF_HUB_OFFLINE:
            return Path(snapshot_download(hub_id, revision=revision, local_files_only=True, allow_patterns=wanted))
        files = HfApi().list_repo_files(hub_id, revision=revision)
        patterns = wanted
        if weights and not any(file.endswith(".safetensors") for file in files):
            patterns = [*wanted, *LEGACY]
        console.note(f"downloading {hub_id} from the Hub (kept in {constants.HF_HUB_CACHE})")
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=patterns))
    except GatedRepoError:
        raise TrntError(
            f"{hub_id} asks for its terms to be accepted",
            f"accept them at https://huggingface.co/{hub_id}, then 'hf auth login'",
        ) from None
    except RevisionNotFoundError:
        raise TrntError(
            f"{hub_id} has no revision {revision}", "leave --revision out, or name one that exists"
        ) from None
    except RepositoryNotFoundError:
        raise TrntError(
            f"no folder and no Hub repository {hub_id}", "check the name, or 'hf auth login' for a private one"
        ) from None
    except Exception as error:  # whatever its network library raises
        said = str(error).strip().splitlines()
        offline = isinstance(error, LocalEntryNotFoundError) or "Connect" in type(error).__name__
        cause = "the Hub cannot be reached" if offline else (said[0] if said else type(error).__name__)
        raise TrntError(
            f"no folder {hub_id} here, and it cannot be downloaded: {cause}",
            f"download it where there is a network ('hf download {hub_id} --local-dir FOLDER') and name that FOLDER",
        ) from None
