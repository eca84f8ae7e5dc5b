"""Causal attention over packed documents, in torchtitan's inner-attention seam.

It is a `VarlenAttention`, so that torchtitan's trainer builds the document boundaries from the positions (a few
integers), where `FlexAttention` would compile a block mask and has no backward on CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from trnt import device

device.ensure()

from torch.distributed.tensor import DTensor
from torchtitan.models.common.attention import VarlenAttention, VarlenMetadata

from trnt.kernels import cpu_attention


class Sinks:
    """GPT-OSS's attention sinks as an `out_transform`, which torchtitan's kernels call with outputs and log-sum-exps.

    trnt's kernels take the logits themselves. sinks_H: one logit per head beside the keys, whose value is zero.
    """

    def __init__(self, sinks_H: torch.Tensor) -> None:
        self.sinks_H = sinks_H.to_local(grad_placements=sinks_H.placements) if isinstance(sinks_H, DTensor) else sinks_H

    def __call__(self, out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        """out (..., N, H) times the share of the softmax that the keys have, lse (..., N)."""
        return out * torch.sigmoid(lse - self.sinks_H).unsqueeze(-1).to(out.dtype)


class DocumentAttention(VarlenAttention):
    """Documents packed in one row never see each other; without boundaries a row is one document.

    `window_size` (w - 1, 0): a query sees w keys, itself included. On CPU: `trnt::document_attention` in the tensors'
    own dtype, memory O(B L N H). On CUDA: torchtitan's variable length attention (bf16). Elsewhere: one boolean mask of
    B x 1 x L x L with torch's attention, all shapes known from the config (not run on hardware).
    """

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        before, after = config.window_size
        if after != 0 or before < -1:
            raise ValueError(f"this kernel is causal, got window_size {config.window_size}")
        self.window = before + 1

    def forward(
        self,
        q_BLNH: torch.Tensor,
        k_BLNH: torch.Tensor,
        v_BLNH: torch.Tensor,
        *,
        attention_masks: VarlenMetadata | None = None,
        scale: float | None = None,
        out_transform: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """(B, L, N, H) from q (B, L, N, H), k and v (B, L, their heads, H), under torchtitan's own argument names.

        Raises ValueError for an `out_transform` other than Sinks.
        """
        if out_transform is not None and not isinstance(out_transform, Sinks):
            raise ValueError("this kernel does not hand out log-sum-exps (out_transform)")
        batch, length = q_BLNH.shape[:2]
        if attention_masks is not None:
            edges = attention_masks.cu_seq_q
        else:
            edges = torch.arange(0, batch * length + 1, length, dtype=torch.int32, device=q_BLNH.device)
        scale = q_BLNH.shape[-1] ** -0.5 if scale is None else scale
        if q_BLNH.device.type == "cpu":
            width = v_BLNH.shape[-1]
            if width < q_BLNH.shape[-1]:  # latent attention: the kernel has one head size
                v_BLNH = F.pad(v_BLNH, (0, q_BLNH.shape[-1] - width))
            flat = (x.flatten(0, 1) for x in (q_BLNH, k_BLNH, v_BLNH))
            sinks_H = None if out_transform is None else out_transform.sinks_H
            out_THK, _ = cpu_attention.document_attention(*flat, edges, scale, sinks_H, self.window)
            return out_THK[..., :width].view(batch, length, -1, width)
        if q_BLNH.device.type == "cuda":
            masks = attention_masks or VarlenMetadata(edges, edges, length, length)
            return super().forward(
                q_BLNH, k_BLNH, v_BLNH, attention_masks=masks, scale=scale, out_transform=out_transform, **options
            )
        mask_BLL = document_mask(edges, batch, length, self.window)
        if out_transform is not None:
            return masked_attention(q_BLNH, k_BLNH, v_BLNH, mask_BLL, scale, out_transform)
        q, k, v = (x.transpose(1, 2) for x in (q_BLNH, k_BLNH, v_BLNH))
        group = q.shape[1] // k.shape[1]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_BLL[:, None], scale=scale, enable_gqa=group > 1)
        return out.transpose(1, 2)


def masked_attention(
    q_BLNH: torch.Tensor,
    k_BLNH: torch.Tensor,
    v_BLNH: torch.Tensor,
    mask_BLL: torch.Tensor,
    scale: float,
    out_transform: Sinks,
) -> torch.Tensor:
    """(B, L, N, H): attention whose log-sum-exps are handed on, which torch's own does not give on every device."""
    group = q_BLNH.shape[2] // k_BLNH.shape[2]
    k_BLNH, v_BLNH = (x.repeat_interleave(group, 2) for x in (k_BLNH, v_BLNH))
    scores_BNLL = torch.einsum("blhk,bmhk->bhlm", q_BLNH, k_BLNH).float() * scale
    scores_BNLL = scores_BNLL.masked_fill(~mask_BLL[:, None], -torch.inf)
    out_BLNH = torch.einsum("bhlm,bmhk->blhk", scores_BNLL.softmax(-1).to(v_BLNH.dtype), v_BLNH)
    return out_transform(out_BLNH, scores_BNLL.logsumexp(-1).transpose(1, 2))


def document_mask(cu_seqlens: torch.Tensor, batch: int, length: int, window: int = 0) -> torch.Tensor:
    """(B, L, L) bool: query l may look at key m when m <= l < m + window and both lie in one document; 0: no window."""
    token_T = torch.arange(batch * length, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    document_BL = torch.searchsorted(cu_seqlens, token_T, right=True).view(batch, length)
    seen = torch.ones(length, length, dtype=torch.bool, device=cu_seqlens.device).tril()
    if window:
        seen = seen.triu(1 - window)
    return seen & (document_BL[:, :, None] == document_BL[:, None, :])
