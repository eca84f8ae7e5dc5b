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
    q_BLHK: torch.Tensor,
    k_BLNK: torch.Tensor,
    v_BLNK: torch.Tensor,
    positions_BL: torch.Tensor,
    scale: float,
    *,
    sinks_H: torch.Tensor | None = None,
    window: int = 0,
) -> torch.Tensor:
    """Causal attention inside documents, (B, L, H, K); a document begins where its position is 0.

    sinks_H: the logit of one more key per head, whose value is zero. window: keys a query sees, itself included.
    """
    group = q_BLHK.shape[2] // k_BLNK.shape[2]
    k, v = (t.repeat_interleave(group, dim=2) for t in (k_BLNK, v_BLNK))
    document_BL = (positions_BL == 0).cumsum(1)
    at_L = torch.arange(positions_BL.shape[1])
    distance_LL = at_L[:, None] - at_L
    seen_LL = (distance_LL >= 0) & (distance_LL < (window or len(at_L)))
    allowed_BLL = seen_LL & (document_BL[:, :, None] == document_BL[:, None, :])
    scores_BHLL = torch.einsum("blhk,bmhk->bhlm", q_BLHK, k) * scale
    scores_BHLL = scores_BHLL.masked_fill(~allowed_BLL[:, None], float("-inf"))
    if sinks_H is not None:
        sinks_BHL1 = sinks_H[:, None, None].expand(*scores_BHLL.shape[:3], 1)
        scores_BHLL = torch.cat([scores_BHLL, sinks_BHL1], -1)
    return torch.einsum("bhlm,bmhk->blhk", scores_BHLL.softmax(-1)[..., : len(at_L)], v)


def cross_entropy(logits_TV: torch.Tensor, labels_T: torch.Tensor) -> torch.Tensor:
    """The sum over targets of -log softmax(logits)[label]; labels of -100 count nothing."""
    keep = labels_T != -100
    log_probabilities = logits_TV.log_softmax(-1)
    return -log_probabilities[keep, labels_T[keep]].sum()


def routed_experts(
    x_TD: torch.Tensor,
    scores_TK: torch.Tensor,
    ids_TK: torch.Tensor,
    w1_EFD: torch.Tensor,
    w2_EDF: torch.Tensor,
    w3_EFD: torch.Tensor,
    b1_EF: torch.Tensor | None = None,
    b2_ED: torch.Tensor | None = None,
    b3_EF: torch.Tensor | None = None,
    *,
    act: str = "silu",
    limit: float = 7.0,
) -> torch.Tensor:
    """(T, D): the sum over k of scores[t, k] * expert[ids[t, k]](x[t]), differentiable in all but ids.

    act "silu": h = silu(g) u. "clamped", GPT-OSS's (transformers' GptOssExperts): g at most `limit`, u within +-limit,
    h = g sigmoid(1.702 g) (u + 1).
    """
    out_TD = torch.zeros_like(x_TD)
    for k in range(ids_TK.shape[1]):
        for e in range(len(w2_EDF)):
            rows = (ids_TK[:, k] == e).nonzero()[:, 0]
            g, u = x_TD[rows] @ w1_EFD[e].T, x_TD[rows] @ w3_EFD[e].T
            if b1_EF is not None and b3_EF is not None:
                g, u = g + b1_EF[e], u + b3_EF[e]
            if act == "silu":
                h = F.silu(g) * u
            else:
                g, u = g.clamp(max=limit), u.clamp(-limit, limit)
                h = g * torch.sigmoid(1.702 * g) * (u + 1)
            y = h @ w2_EDF[e].T
            y = y if b2_ED is None else y + b2_ED[e]
            out_TD = out_TD.index_add(0, rows, scores_TK[rows, k, None] * y)
    return out_TD


def route(
    logits_TE: torch.Tensor,
    top_k: int,
    *,
    score: str = "softmax",
    normalise: bool = True,
    scale: float = 1.0,
    bias_E: torch.Tensor | None = None,
    groups: int = 0,
    limited: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(affinities, ids), (T, K), largest first; equal scores: the lower index, as the hardware finds it.

    bias_E and groups shift only the choice (DeepSeek-V3, arXiv 2412.19437, section 2.1.2).
    """
    scores_TE = {"softmax": logits_TE.softmax(-1), "sigmoid": logits_TE.sigmoid(), "softmax_topk": logits_TE}[score]
    choice_TE = scores_TE if bias_E is None else scores_TE + bias_E
    if groups > 1:
        grouped = choice_TE.unflatten(-1, (groups, -1))
        best = (
            grouped.sort(-1, descending=True).values[..., :2].sum(-1).sort(dim=-1, descending=True, stable=True).indices
        )
        kept = torch.zeros(grouped.shape[:-1], dtype=torch.bool).scatter(-1, best[:, :limited], True)
        choice_TE = grouped.masked_fill(~kept[..., None], float("-inf")).flatten(-2)
    ids_TK = choice_TE.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    affinity_TK = scores_TE.gather(-1, ids_TK)
    if score == "softmax_topk":
        affinity_TK = affinity_TK.softmax(-1)
    elif normalise:
        affinity_TK = affinity_TK / (affinity_TK.sum(-1, keepdim=True) + 1e-20)
    return affinity_TK * scale, ids_TK
