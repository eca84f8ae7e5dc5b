"""Reading torch DCP folders, one tensor at a time, without a process group."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnt.errors import TrntError

# What a model tensor's name starts with; optimizer names hold the same words further in.
MODEL_STARTS = ("tok_embeddings.", "layers.", "mtp_layers.", "norm.", "lm_head.")


@dataclass(frozen=True)
class DcpFolder:
    """A DCP folder and its metadata."""

    path: Path
    metadata: Any

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor, the optimizer's too."""
        entries = self.metadata.state_dict_metadata.items()
        return {name: tuple(entry.size) for name, entry in entries if hasattr(entry, "size")}

    def model_names(self) -> list[str]:
        """The model's tensors."""
        return [name for name in self.shapes() if name.startswith(MODEL_STARTS)]

    def dtype(self, name: str) -> Any:
        """The dtype a tensor was saved in."""
        return self.metadata.state_dict_metadata[name].properties.dtype

    def read(self, name: str) -> Any:
        """One tensor, whole, in the dtype it was saved in. Raises TrntError when it cannot be read."""
        from trnt import device

        device.ensure()
        import torch
        import torch.distributed.checkpoint as dcp

        target = {name: torch.empty(self.shapes()[name], dtype=self.dtype(name))}
        try:
            dcp.load(target, storage_reader=dcp.FileSystemReader(self.path), no_dist=True)
        except (dcp.CheckpointException, OSError, RuntimeError) as error:
            raise TrntError(f"cannot read {name} from {self.path}: {error}", "use another checkpoint") from error
        return target[name]


def open_dcp(path: str | Path) -> DcpFolder:
    """Open a DCP folder. Raises TrntError when it is none, or when its metadata cannot be read."""
    import torch.distributed.checkpoint as dcp

    folder = Path(path)
    if not (folder / ".metadata").is_file():
        raise TrntError(f"{folder} is no checkpoint: it has no .metadata", "name a checkpoint/step-N folder")
    try:
        return DcpFolder(folder, dcp.FileSystemReader(folder).read_metadata())
    except Exception as error:
        raise TrntError(f"cannot read {folder / '.metadata'}: {error}", "use another checkpoint") from error


def complete(path: Path) -> str | None:
    """None when the metadata and every file it names are there with all their bytes, else what is missing."""
    if not (path / ".metadata").is_file():
        return "it has no .metadata"
    try:
        metadata = open_dcp(path).metadata
    except TrntError as error:
        return error.cause
    needed: dict[str, int] = {}
    for info in (metadata.storage_data or {}).values():
        needed[info.relative_path] = max(needed.get(info.relative_path, 0), info.offset + info.length)
    for name, size in needed.items():
        file = path / name
        if not file.is_file():
            return f"the file {name} is missing"
        if file.stat().st_size < size:
            return f"the file {name} has {file.stat().st_size} of {size} bytes"
    return None
