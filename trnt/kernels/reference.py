"""Plain torch, slow and obvious: what every kernel is compared with. Works in float64 too."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def experts(
    x_RD: torch.Tensor,
    num_tokens_per_expert_E: torch.Tensor,
    w1_EFD: torch.Tensor,
    w2_EDF: torch.Tensor,
    w3_EFD: torch.Tensor,
) -> torch.Tensor:
    """SwiGLU of each expert over its own tokens: y = (silu(x w1^T) * (x w3^T)) w2^T, (R, D).

    Tokens are sorted by expert: the first `num_tokens_per_expert_E[0]` rows belong to expert 0, and so on.
    """
    parts = x_RD.split(num_tokens_per_expert_E.tolist())
    out = [(F.silu(x @ w1_EFD[e].T) * (x @ w3_EFD[e].T)) @ w2_EDF[e].T for e, x in enumerate(parts)]
    return torch.cat(out)


def attention(
    q_BLHK: torch.Tensor, k_BLNK: torch.Tensor, v_BLNK: torch.Tensor, positions_BL: torch.Tensor, scale: float
) -> torch.Tensor:
    """Causal attention inside documents, (B, L, H, K); a document begins where its position is 0."""
    group = q_BLHK.shape[2] // k_BLNK.shape[2]
    k, v = (t.repeat_interleave(group, dim=2) for t in (k_BLNK, v_BLNK))
    document_BL = (positions_BL == 0).cumsum(1)
    length = positions_BL.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    allowed_BLL = causal & (document_BL[:, :, None] == document_BL[:, None, :])
    scores_BHLL = torch.einsum("blhk,bmhk->bhlm", q_BLHK, k) * scale
    scores_BHLL = scores_BHLL.masked_fill(~allowed_BLL[:, None], float("-inf"))
    return torch.einsum("bhlm,bmhk->blhk", scores_BHLL.softmax(-1), v)


def cross_entropy(logits_TV: torch.Tensor, labels_T: torch.Tensor) -> torch.Tensor:
    """The sum over targets of -log softmax(logits)[label]; labels of -100 count nothing."""
    keep = labels_T != -100
    log_probabilities = logits_TV.log_softmax(-1)
    return -log_probabilities[keep, labels_T[keep]].sum()
