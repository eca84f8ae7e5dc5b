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

from torchtitan.models.common.attention import VarlenAttention, VarlenMetadata

from trnt.kernels import cpu


class DocumentAttention(VarlenAttention):
    """Documents packed in one row never see each other; without boundaries a row is one document.

    On CPU: `trnt::document_attention` in the tensors' own dtype, memory O(B L H K). On CUDA: torchtitan's variable
    length attention (bf16). Elsewhere: one boolean mask of B x 1 x L x L with torch's attention, all shapes known from
    the config (not run on hardware).
    """

    @dataclass(kw_only=True, slots=True)
    class Config(VarlenAttention.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.window_size != (-1, 0):
            raise ValueError(f"this kernel is causal without a window, got window_size {config.window_size}")

    def forward(
        self,
        q_BLHK: torch.Tensor,
        k_BLNK: torch.Tensor,
        v_BLNK: torch.Tensor,
        *,
        attention_masks: VarlenMetadata | None = None,
        scale: float | None = None,
        out_transform: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """(B, L, H, K) from q (B, L, H, K), k and v (B, L, N, K). Raises ValueError for an `out_transform`."""
        if out_transform is not None:
            raise ValueError("this kernel does not hand out log-sum-exps (out_transform)")
        batch, length = q_BLHK.shape[:2]
        if attention_masks is not None:
            edges = attention_masks.cu_seq_q
        else:
            edges = torch.arange(0, batch * length + 1, length, dtype=torch.int32, device=q_BLHK.device)
        scale = q_BLHK.shape[-1] ** -0.5 if scale is None else scale
        if q_BLHK.device.type == "cpu":
            width = v_BLNK.shape[-1]
            if width < q_BLHK.shape[-1]:  # latent attention: the kernel has one head size
                v_BLNK = F.pad(v_BLNK, (0, q_BLHK.shape[-1] - width))
            flat = (x.flatten(0, 1) for x in (q_BLHK, k_BLNK, v_BLNK))
            out_THK, _ = cpu.document_attention(*flat, edges, scale)
            return out_THK[..., :width].view(batch, length, -1, width)
        if q_BLHK.device.type == "cuda":
            masks = attention_masks or VarlenMetadata(edges, edges, length, length)
            return super().forward(q_BLHK, k_BLNK, v_BLNK, attention_masks=masks, scale=scale, **options)
        mask_BLL = document_mask(edges, batch, length)
        q, k, v = (x.transpose(1, 2) for x in (q_BLHK, k_BLNK, v_BLNK))
        group = q.shape[1] // k.shape[1]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_BLL[:, None], scale=scale, enable_gqa=group > 1)
        return out.transpose(1, 2)


def document_mask(cu_seqlens: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    """(B, L, L) bool: query l may look at key m when m <= l and both lie in one document."""
    token_T = torch.arange(batch * length, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    document_BL = torch.searchsorted(cu_seqlens, token_T, right=True).view(batch, length)
    causal = torch.ones(length, length, dtype=torch.bool, device=cu_seqlens.device).tril()
    return causal & (document_BL[:, :, None] == document_BL[:, None, :])
