"""The export of a run by transformers' model code: its own `save_pretrained` writes the names that files have.

The run's checkpoint holds transformers' names in memory, which are not always those in files (fused experts are written
one by one). Only transformers knows both for every architecture, so that the whole model is in memory once.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from trnt import console, host_memory
from trnt.checkpoint import assets
from trnt.checkpoint.dcp import open_dcp
from trnt.checkpoint.dtypes import DTYPES, torch_dtype
from trnt.checkpoint.layout import SHARD_BYTES
from trnt.checkpoint.written import check_room, refuse_existing, sync_folder, take_name
from trnt.errors import TrntError

Add: TypeAlias = Callable[[Path, dict[str, Any], str], None]
PREFIX = "hf."  # of a run's parameters, `models/transformers_model.py`


@dataclass(frozen=True)
class Options:
    """How to write. dtype: torch's name, None for the run's; check: load the finished folder."""

    dtype: str | None = None
    force: bool = False
    shard_bytes: int = SHARD_BYTES
    check: bool = True


def export(step: Path, origin: Path, tokenizer: Path, target: Path, options: Options, add: Add) -> dict[str, Any]:
    """Write `target` from a step folder, whole or not at all. Returns the report.

    origin: the folder of the run's config.json; tokenizer: of its tokenizer; add(folder, config, dtype) writes what
    else belongs into it. Raises TrntError when a weight is NaN or infinite, when the disk refuses, or when the finished
    folder would not load.
    """
    refuse_existing(target, force=options.force)
    start = time.perf_counter()
    config = assets.read_config(origin / assets.CONFIG)
    model, written = filled(step, config, options.dtype)
    nbytes = sum(p.nbytes for p in model.parameters())
    partial = target.with_name(f".{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        check_room(target.parent, nbytes)
        shutil.rmtree(partial, ignore_errors=True)
        model.save_pretrained(partial, max_shard_size=options.shard_bytes)
        tensors = len(model.state_dict())
        del model
        (partial / "generation_config.json").unlink(missing_ok=True)  # transformers' says nothing of the tokenizer
        for folder in (tokenizer, origin):
            assets.copy_assets(folder, partial)
        config = {**config, "dtype": written}
        config.pop("torch_dtype", None)
        assets.write_config(config, None, partial)
        add(partial, config, written)
        if options.check:
            loads(partial)
        sync_folder(partial)
        take_name(partial, target)
    except OSError as error:
        raise TrntError(
            f"cannot write {target}: {error.strerror or error}", "free some disk space, or name another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    files = list(target.glob("*.safetensors"))
    return {
        "folder": str(target),
        "step_folder": str(step),
        "architecture": config.get("architectures", ["AutoModelForCausalLM"])[0],
        "dtype": written,
        "dropped": None,
        "checked": options.check,
        "to": "hf",
        "tensors": tensors,
        "bytes": nbytes,
        "files": len(files),
        "seconds": time.perf_counter() - start,
        "memory_peak_bytes": host_memory.peak_bytes(),
    }


def filled(step: Path, config: dict[str, Any], dtype: str | None) -> tuple[Any, str]:
    """(transformers' model with the weights of a step, torch's name of their dtype).

    Raises TrntError for a weight that is missing, left over, NaN or infinite.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from trnt.models.transformers import parsed

    with open_dcp(step) as source:
        names = [name for name in source.tensors if name.startswith(PREFIX)]
        if not names:
            raise TrntError(f"{step} holds no weights of a transformers model", "name a step of such a run")
        code = max((source.tensors[name].dtype for name in names), key=lambda code: torch_dtype(code).itemsize)
        written = dtype or DTYPES[code][0]
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(parsed(config), dtype=getattr(torch, written))
        state = {}
        with console.progress("reading the run", total=len(names), unit="tensors") as ticker:
            for name in names:
                value = source.tensor(name)
                if value.is_floating_point():
                    if not bool(torch.isfinite(value).all()):
                        raise TrntError(f"{name} holds NaN or infinite values", "export an earlier step of the run")
                    value = value.to(getattr(torch, written))
                state[name.removeprefix(PREFIX)] = value
                ticker.advance()
    found = model.load_state_dict(state, strict=False, assign=True)
    model.tie_weights()
    tied = {name for name in found.missing_keys if not model.get_parameter(name).is_meta}
    wrong = [*(set(found.missing_keys) - tied), *found.unexpected_keys]
    if wrong:
        raise TrntError(
            f"{step} and its config.json disagree on {', '.join(sorted(wrong)[:5])}",
            "use the transformers that the run was trained with",
        )
    return model, written


def loads(folder: Path) -> None:
    """Load a folder as its users will. Raises TrntError naming what is missing, unexpected or misshapen."""
    from transformers import AutoModelForCausalLM

    _, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, local_files_only=True)
    wrong = [str(key) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in info[kind]]
    if wrong:
        raise TrntError(
            f"transformers would not load the export: {', '.join(wrong[:5])}", "report this: it wrote the folder itself"
        )
