"""Counting what processes send each other: the collectives of torch, by mesh and kind, with their bytes.

A dispatch mode, as `torch.distributed.tensor.debug.CommDebugMode` is, which counts calls only. It sees torch's own
operators of `torch.distributed` (FSDP2, pipelines, sums) and the functional ones (DTensor, SimpleFSDP, all-to-all), in
the backward too, where it runs in the calling thread as on the CPU; not what lies inside compiled code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from trnt.parallel.sent import SENT, Count, Traffic


def tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)


def size(value: Any) -> int:
    return sum(x.numel() * x.element_size() for x in tensors(value))


# torch's operator: (kind, name of the argument that a process hands in)
OPERATORS: dict[str, tuple[str, str]] = {
    "c10d::_allgather_base_": ("all-gather", "input_tensor"),
    "c10d::allgather_": ("all-gather", "input_tensors"),
    "c10d::allgather_into_tensor_coalesced_": ("all-gather", "inputs"),
    "c10d::_reduce_scatter_base_": ("reduce-scatter", "input_tensor"),
    "c10d::reduce_scatter_": ("reduce-scatter", "input_tensors"),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce-scatter", "inputs"),
    "c10d::allreduce_": ("all-reduce", "tensors"),
    "c10d::allreduce_coalesced_": ("all-reduce", "tensors"),
    "c10d::alltoall_base_": ("all-to-all", "input"),
    "c10d::alltoall_": ("all-to-all", "input_tensors"),
    "c10d::broadcast_": ("broadcast", "tensors"),
    "c10d::send": ("send", "tensors"),
    "c10d::recv_": ("receive", "tensors"),
    "_c10d_functional::all_gather_into_tensor": ("all-gather", "input"),
    "_c10d_functional::all_gather_into_tensor_out": ("all-gather", "input"),
    "_c10d_functional::all_gather_into_tensor_coalesced": ("all-gather", "inputs"),
    "_c10d_functional::reduce_scatter_tensor": ("reduce-scatter", "input"),
    "_c10d_functional::reduce_scatter_tensor_out": ("reduce-scatter", "input"),
    "_c10d_functional::reduce_scatter_tensor_coalesced": ("reduce-scatter", "inputs"),
    "_c10d_functional::all_reduce": ("all-reduce", "input"),
    "_c10d_functional::all_reduce_": ("all-reduce", "input"),
    "_c10d_functional::all_reduce_coalesced": ("all-reduce", "inputs"),
    "_c10d_functional::all_reduce_coalesced_": ("all-reduce", "inputs"),
    "_c10d_functional::all_to_all_single": ("all-to-all", "input"),
    "_c10d_functional::broadcast": ("broadcast", "input"),
    "_c10d_functional::broadcast_": ("broadcast", "input"),
}
NUMBER = "single number"  # its own kind, whatever is done with it: a loss, a norm or a count costs its latency only
SILENT = ("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd", "c10d::barrier")


class Counting(TorchDispatchMode):
    """Counts while it is entered.

    names: what a process group is called, by torch's name of it; torch's name where there is none. A collective of this
    list's namespaces that is in no table is an error: a count that leaves something out would be false.
    """

    def __init__(self, names: dict[str, str] | None = None) -> None:
        super().__init__()
        self.names = names or {}
        self.found: Traffic = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it comes again as what it is made of
        if func.namespace in ("c10d", "_c10d_functional"):
            self.count(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def count(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = func._schema.name
        if name in SILENT:
            return
        kind, source = OPERATORS[name]
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
        group = given["process_group"] if "process_group" in given else given["group_name"]
        if isinstance(group, str):
            called, n = group, dist.distributed_c10d._resolve_process_group(group).size()
        else:
            group = dist.ProcessGroup.unbox(group) if isinstance(group, torch.ScriptObject) else group
            called, n = group.group_name, group.size()
        one = sum(x.numel() for x in tensors(given[source])) == 1
        key = (self.names.get(called, called), NUMBER if one else kind)
        self.found.setdefault(key, Count()).add(SENT[kind](size(given[source]), n))


def groups(parallel_dims: Any) -> dict[str, str]:
    """Torch's name of the process group of each of torchtitan's meshes; meshes of the same processes may share one."""
    found: dict[str, str] = {}
    for name in ("pp", "dp_replicate", "fsdp", "efsdp", "ep", "tp", "cp"):
        mesh = parallel_dims.get_optional_mesh(name)
        if mesh is not None:
            found[name] = mesh.get_group().group_name
    return found
