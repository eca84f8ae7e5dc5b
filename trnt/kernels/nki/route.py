"""The router: scores, the choice of top_k experts, and their affinities.

    softmax          s = softmax(logits)                    choose by s                  affinity s / sum * scale
    sigmoid          s = sigmoid(logits)                    choose by s + bias           affinity s / sum * scale
      groups         only experts of the `limited` groups with the largest sum of their two best choices
    softmax_topk     choose by logits                                                    softmax over the chosen * scale

`normalise` divides by the sum over the chosen (softmax_topk: always normalised). Equal scores: the lower index wins, as
in the hardware's `nc_find_index8`.

Layout. logits_TE float32, tokens on the partitions, 128 at a time; bias_1E float32. Out: affinity_TK float32, ids_TK
uint32. Limits: top_k and `limited` at most 8 (max8), at most 16,384 experts, at most 8 groups of 2 or more experts.
Fewer than 8 experts, or groups, are padded with -3e38. SBUF per partition: 4 E x 4 bytes (DeepSeek-V3's 256 experts:
about 5 KB); no PSUM. Formulas: the DeepSeek-V3 report (arXiv 2412.19437, section 2.1.2) and the models' public configs.
"""

from __future__ import annotations

from trnt.kernels.nki.api import nisa, nki, nl
from trnt.kernels.nki.tiles import P, parts

LOWEST = -3.0e38  # below every score; -inf would make 0 * -inf
EIGHT = 8


def keep_groups(choice, rows, E, groups, limited):
    """choice[:, e] = LOWEST outside the `limited` groups whose two best choices have the largest sum."""
    each = E // groups
    sums = nl.ndarray((rows, EIGHT), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=sums, value=LOWEST)
    padded = nl.ndarray((rows, max(each, EIGHT)), dtype=nl.float32, buffer=nl.sbuf)
    best = nl.ndarray((rows, EIGHT), dtype=nl.float32, buffer=nl.sbuf)
    if each < EIGHT:
        nisa.memset(dst=padded, value=LOWEST)
    for group in range(groups):
        members = choice[:, group * each : (group + 1) * each]
        if each < EIGHT:
            nisa.tensor_copy(dst=padded[:, 0:each], src=members)
            members = padded
        nisa.max8(dst=best, src=members)
        nisa.tensor_tensor(dst=sums[:, group : group + 1], data1=best[:, 0:1], data2=best[:, 1:2], op=nl.add)
    nisa.max8(dst=best, src=sums)
    if limited < EIGHT:
        # A value that no group has: only the `limited` largest are matched below.
        nisa.memset(dst=best[:, limited:EIGHT], value=-LOWEST)
    marked = nl.ndarray((rows, EIGHT), dtype=nl.float32, buffer=nl.sbuf)
    nisa.nc_match_replace8(dst=marked, data=sums, vals=best, imm=-LOWEST)
    # 0 for a group that is kept, LOWEST for one that is not: added, it leaves a kept score as it is.
    nisa.tensor_scalar(dst=marked, data=marked, op0=nl.not_equal, operand0=-LOWEST, op1=nl.multiply, operand1=LOWEST)
    for group in range(groups):
        members = choice[:, group * each : (group + 1) * each]
        nisa.tensor_scalar(dst=members, data=members, op0=nl.add, operand0=marked[:, group : group + 1])


@nki.jit
def route(
    logits_TE, bias_1E=None, top_k=8, score="softmax", normalise=True, scale=1.0, groups=0, limited=0, has_bias=False
):
    """affinity_TK float32 and ids_TK uint32."""
    T, E = logits_TE.shape
    assert score in ("softmax", "sigmoid", "softmax_topk"), "score is softmax, sigmoid or softmax_topk"
    assert 1 <= top_k <= min(EIGHT, E), "top_k is 1 to 8 and at most the number of experts"
    assert limited <= groups <= EIGHT, "at most 8 groups, of which `limited` are kept"
    width = max(E, EIGHT)
    affinity_TK = nl.ndarray((T, top_k), dtype=nl.float32, buffer=nl.shared_hbm)
    ids_TK = nl.ndarray((T, top_k), dtype=nl.uint32, buffer=nl.shared_hbm)
    for _, begin, rows in parts(T, P):
        logits = nl.ndarray((rows, E), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=logits, src=logits_TE[begin : begin + rows, :])
        scores = nl.ndarray((rows, E), dtype=nl.float32, buffer=nl.sbuf)
        choice = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.sbuf)
        if width > E:
            nisa.memset(dst=choice, value=LOWEST)
        one = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        if score == "softmax":
            nisa.tensor_reduce(dst=one, op=nl.maximum, data=logits, axis=1, negate=True)
            total = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.activation_reduce(dst=scores, op=nl.exp, data=logits, reduce_op=nl.add, reduce_res=total, bias=one)
            nisa.reciprocal(dst=total, data=total)
            nisa.tensor_scalar(dst=scores, data=scores, op0=nl.multiply, operand0=total)
        elif score == "sigmoid":
            nisa.activation(dst=scores, op=nl.sigmoid, data=logits)
        else:
            nisa.tensor_copy(dst=scores, src=logits)
        if has_bias:
            bias = nl.ndarray((rows, E), dtype=nl.float32, buffer=nl.sbuf)
            nisa.dma_copy(dst=bias, src=bias_1E.ap(pattern=[[0, rows], [1, E]]))
            nisa.tensor_tensor(dst=choice[:, 0:E], data1=scores, data2=bias, op=nl.add)
        else:
            nisa.tensor_copy(dst=choice[:, 0:E], src=scores)
        if groups > 1:
            keep_groups(choice[:, 0:E], rows, E, groups, limited)
        best = nl.ndarray((rows, EIGHT), dtype=nl.float32, buffer=nl.sbuf)
        ids = nl.ndarray((rows, EIGHT), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.max8(dst=best, src=choice)
        nisa.nc_find_index8(dst=ids, data=choice, vals=best)
        chosen = nl.ndarray((rows, top_k), dtype=nl.float32, buffer=nl.sbuf)
        nisa.nc_n_gather(dst=chosen, data=scores, indices=ids[:, 0:top_k])
        if score == "softmax_topk":
            nisa.tensor_reduce(dst=one, op=nl.maximum, data=chosen, axis=1, negate=True)
            nisa.activation(dst=chosen, op=nl.exp, data=chosen, bias=one)
        if normalise or score == "softmax_topk":
            nisa.tensor_reduce(dst=one, op=nl.add, data=chosen, axis=1)
            # As torchtitan's router: scores that are all zero stay zero.
            nisa.tensor_scalar(dst=one, data=one, op0=nl.maximum, operand0=1.0e-20)
            nisa.reciprocal(dst=one, data=one)
            nisa.tensor_scalar(dst=chosen, data=chosen, op0=nl.multiply, operand0=one, op1=nl.multiply, operand1=scale)
        else:
            nisa.tensor_scalar(dst=chosen, data=chosen, op0=nl.multiply, operand0=scale)
        nisa.dma_copy(dst=affinity_TK[begin : begin + rows, :], src=chosen)
        nisa.dma_copy(dst=ids_TK[begin : begin + rows, :], src=ids[:, 0:top_k])
    return affinity_TK, ids_TK
