"""SimpleFSDP (arXiv 2411.00284): weights gathered by plain tensor operations that a compiler sees, as Neuron's wants.

torchtitan's own (`experiments/graph_trainer`) turns every parameter into a property that gathers its parts. Here: the
first weights of such a model, a head that is the embedding, and a loss in chunks that gathers the head once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from trnt import device

device.ensure()

import torchtitan.experiments.graph_trainer.simple_fsdp as titan
from torchtitan.experiments.graph_trainer.common_utils import apply_simple_fsdp

from trnt.kernels.loss import ChunkedLoss


def apply(model: Any, *, parallel_dims: Any, training: Any) -> Any:
    """Spread a `Decoder`'s weights; a pipeline's stage, too."""
    titan._wrap_class_cache.clear()  # its classes would gather this model's weights over the meshes of an earlier one
    apply_simple_fsdp(model, parallel_dims=parallel_dims, training=training)
    if model.enable_weight_tying:  # it was given parts of its own in each of its two places (torchtitan#1524)
        model.tok_embeddings.register_parameter("weight", model.lm_head._parameters["weight"])
    init_weights = model.init_weights

    def of_parts(**options: Any) -> None:
        with titan.disable_active_parametrization():
            init_weights(**options)

    model.init_weights = of_parts
    return model


@contextmanager
def gathered(module: Any) -> Iterator[None]:
    """Inside, `module.weight` is one tensor, however often it is used; at the end its gradient goes to the parts."""
    weight, parts, kind = module.weight, module._parameters["weight"], type(module)
    if weight is parts:
        yield
        return
    leaf = torch.nn.Parameter(weight.detach(), requires_grad=parts.requires_grad)
    module.__class__, module._parameters["weight"] = kind.__mro__[1], leaf
    try:
        yield
    finally:
        module.__class__, module._parameters["weight"] = kind, parts
    if leaf.grad is not None:
        weight.backward(leaf.grad)


class GatheredLoss(ChunkedLoss):
    """`ChunkedLoss` with the head gathered once for all chunks."""

    @dataclass(kw_only=True, slots=True)
    class Config(ChunkedLoss.Config):
        pass

    def __call__(self, *args: Any, **options: Any) -> Any:
        """As `ChunkedLoss`: hidden states (B, L, D) and targets (B, L) to a loss () and metrics."""
        with gathered(self.lm_head):
            return super().__call__(*args, **options)
