"""Linear layers and embeddings that write their weight's gradient in place where it is owned (`kernels/grads.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

from trnt import device

device.ensure()

from torchtitan.models.common import Embedding as TitanEmbedding
from torchtitan.models.common import Linear as TitanLinear

from trnt.kernels import grads, matmul, norms
from trnt.parallel.parts import local


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_FD: torch.Tensor, bias_F: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weight = weight_FD  # the parameter itself: recomputation hands back copies of what is saved
        y_TF = matmul.times_transposed(x.flatten(0, -2), weight_FD)
        if bias_F is not None:
            y_TF += bias_F
        return y_TF.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        (x,), weight_FD = ctx.saved_tensors, ctx.weight
        dy_TF = grad[0].flatten(0, -2)
        out, overwrite = grads.buffer(weight_FD)
        grads.put_product(out, dy_TF, x.flatten(0, -2), overwrite=overwrite, mark=grads.owner(weight_FD))
        dx = matmul.times(dy_TF, weight_FD).view(x.shape) if ctx.needs_input_grad[0] else None
        return dx, None, dy_TF.sum(0) if ctx.needs_input_grad[2] else None


class _Product(torch.autograd.Function):
    """The same, its gradients returned: for torch.compile, which calls MKL for every product of a training step."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight_FD: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight_FD)
        return matmul.times_transposed(x.flatten(0, -2), weight_FD).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        x, weight_FD = ctx.saved_tensors
        x_TD, dy_TF = x.flatten(0, -2), grad[0].flatten(0, -2)
        return matmul.times(dy_TF, weight_FD).view(x.shape), matmul.transposed_times(dy_TF, x_TD)


class Linear(TitanLinear):
    """torchtitan's linear layer; an owned weight's gradient is written in place."""

    @dataclass(kw_only=True, slots=True)
    class Config(TitanLinear.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(..., F) from (..., D)."""
        weight = self._parameters.get("weight")  # not self.weight: SimpleFSDP gathers it at every look
        if weight is not None and torch.is_grad_enabled() and grads.usable(weight):
            return _Linear.apply(input, weight, self.bias)
        if torch.compiler.is_compiling():
            weight = self.weight
            if not isinstance(weight, DTensor) and matmul.fast(weight):
                y = _Product.apply(input, weight)
                return y if self.bias is None else y + self.bias
            return F.linear(input, weight, self.bias)
        return super().forward(input)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: torch.Tensor, weight_VD: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(ids)
        ctx.weight = weight_VD
        return F.embedding(ids, weight_VD)

    @staticmethod
    def backward(ctx: Any, *grad: Any) -> Any:
        (ids,), weight_VD = ctx.saved_tensors, ctx.weight
        found_U, inverse_T = ids.flatten().unique(return_inverse=True)
        dy_TD = grad[0].flatten(0, -2)
        sums_UD = torch.ops.aten.embedding_dense_backward(dy_TD, inverse_T, len(found_U), -1, False)
        out, overwrite = grads.buffer(weight_VD)
        if overwrite:
            out.zero_()
        else:
            sums_UD += out[found_U]
        out[found_U] = sums_UD.to(out.dtype)
        mark = grads.owner(weight_VD)
        if overwrite and mark is not None:
            mark.norms = {0: norms.of_rows(sums_UD)}
        return None, None


class Embedding(TitanEmbedding):
    """torchtitan's embedding; an owned weight's gradient is written in place, for the rows that were looked up."""

    @dataclass(kw_only=True, slots=True)
    class Config(TitanEmbedding.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(..., D) from ids (...)."""
        weight = self._parameters.get("weight")  # as above
        if weight is not None and torch.is_grad_enabled() and grads.usable(weight):
            mark = grads.owner(weight)
            if mark is not None and mark.sparse:
                return F.embedding(input, weight, sparse=True)
            return _Embedding.apply(input, weight)
        if self.tp_group is not None:
            return super().forward(input)
        return F.embedding(input, local(self.weight))  # torchtitan's looks twice
