"""The same random weights from one seed in every layout.

torch draws a sharded tensor's numbers shard by shard where a mesh has no random tracker (CPU, Neuron): each layout
would begin elsewhere. Here process 0 draws the whole model as one process would, and the others take their parts of it,
one tensor at a time. Process 0 holds the whole model once while that lasts.
"""

from __future__ import annotations

from typing import Any

import torch

from trnt import device

device.ensure()

import torch.distributed as dist
from torchtitan.config import TORCH_DTYPE_MAP
from torchtitan.tools.utils import set_default_dtype

from trnt.parallel.parts import bare, box


def drawn(model_config: Any, seed: int, dtype: str) -> torch.nn.Module:
    """A whole model on the CPU with the weights that one process draws from this seed."""
    torch.manual_seed(seed)
    with torch.device("meta"), set_default_dtype(TORCH_DTYPE_MAP[dtype]):
        model = model_config.build()
    model.to_empty(device="cpu")
    model.init_weights(buffer_device=torch.device("cpu"))
    return model


@torch.no_grad()
def same_weights(parts: list[Any], model_config: Any, seed: int, dtype: str) -> None:
    """Replace the parameters of every process's part of a model by those of one whole model."""
    first = dist.get_rank() == 0
    whole = dict(drawn(model_config, seed, dtype).named_parameters()) if first else {}
    told: list[Any] = [[(name, value.shape, value.dtype) for name, value in whole.items()]]
    dist.broadcast_object_list(told, 0)
    mine = {bare(name): parameter for part in parts for name, parameter in part.named_parameters()}
    where = next(iter(mine.values())).device
    for name, shape, kind in told[0]:
        value = whole[name].to(where) if first else torch.empty(shape, dtype=kind, device=where)
        dist.broadcast(value, 0)
        if name in mine:
            local, begin = box(mine[name])
            local.copy_(value[tuple(slice(b, b + n) for b, n in zip(begin, local.shape, strict=True))])
