"""SwiGLU experts over blocks of tokens, dropless: the forward kernel.

    out[t] = sum over k of affinity[t, k] * expert[ids[t, k]](x[t])
    expert(x) = h W2^T + b2,   h = silu(x W1^T) * (x W3^T)                                         act "silu"
    h = g sigmoid(1.702 g) (u + 1),  g = min(x W1^T + b1, 7),  u = clamp(x W3^T + b3, -7, 7)       act "clamped"

Layout. x_TD tokens; w1_EFD, w3_EFD (F, D) and w2_EDF (D, F) per expert as torchtitan has them (`interleaved`: w1 holds
gate and up in alternating rows, as GPT-OSS does, and w3 is not used). Blocks of B rows in the order of experts, at
least one per expert (`layout.py`): token_NB the token of each row, T for padding; affinity_NB fp32, 0 for padding;
bounds_E6 the blocks of expert e (`layout.Layout`); position_TK the row (of N x B) of each choice of each token.

Per expert: weights into SBUF with the contraction on the partitions (DMA transpose), the next expert's while this one
computes where two fit. Per block: gather and transpose x; gate and up as [F 128, B] in PSUM; h^T [F, B] is at once the
stationary operand of the down product [tokens 128, D 512], which the affinity scales on its way out of PSUM. Rows go to
HBM; then each token adds up its K rows: gathers in a fixed order in place of a scatter-add, so no row has two writers.

Limits: B 128, 256 or 512; D and F any (the last tile of 128 may be shorter); K <= 8 not needed here; bf16 or fp32.
SBUF per partition, s bytes an element: D s (rows) + 2 ceil(D/128) B s (x^T, its rows arriving) + ceil(F/128) B s (h^T)
+ 2 ceil(F/128) B s (saved) + 12 B (activation) + D s (out) + weights 2 ceil(D/128) F s + ceil(F/128) D s where they
fit, else in chunks. PSUM: 2 banks gate and up, 1 transposes, 1 down, doubled by the compiler to 8.
Saved for the backward: gate and up before the activation, [N, 128, 2, F/128, B], as SBUF holds them.
"""

from __future__ import annotations

from trnt.kernels.nki.activations import activate, keep
from trnt.kernels.nki.api import nisa, nki, nl
from trnt.kernels.nki.plan import P, forward_chunks, tiles
from trnt.kernels.nki.tiles import (
    COLUMNS,
    add_up,
    check_launch,
    column_tiles,
    expert_rows,
    gather_rows,
    load_bias,
    load_column,
    load_transposed,
    parts,
    transpose_rows,
)


@nki.jit
def experts_forward(
    x_TD,
    token_NB,
    affinity_NB,
    bounds_E6,
    position_TK,
    w1_EFD,
    w2_EDF,
    w3_EFD,
    b1_EF=None,
    b2_ED=None,
    b3_EF=None,
    act="silu",
    limit=7.0,
    interleaved=False,
    has_bias=False,
    save=True,
):
    """out_TD in x's dtype, and saved_NP2fB for the backward (only with `save`)."""
    T, D = x_TD.shape
    N, B = token_NB.shape
    E, F = w2_EDF.shape[0], w2_EDF.shape[2]
    dtype = x_TD.dtype
    size = 2 if dtype == nl.bfloat16 else 4
    nD, nF = tiles(D), tiles(F)
    check_launch(B)
    step, first_up = (2, 1) if interleaved else (1, 0)

    resident, ahead, FC, DC = forward_chunks(D, F, B, size, save, nl.tile_size.sbuf_fmax_bytes)
    assert min(FC, DC) > 0, "a block's activations leave no room for weights: take a smaller block"

    out_TD = nl.ndarray((T, D), dtype=dtype, buffer=nl.shared_hbm)
    rows_NBD = nl.ndarray((N, B, D), dtype=dtype, buffer=nl.private_hbm)
    saved_NP2fB = None
    if save:
        saved_NP2fB = nl.ndarray((N, P, 2, nF, B), dtype=dtype, buffer=nl.shared_hbm)
    ones = nl.ndarray((1, P), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)

    def gate_up(e, first, width):
        gate = nl.ndarray((P, nD, width), dtype=dtype, buffer=nl.sbuf)
        up = nl.ndarray((P, nD, width), dtype=dtype, buffer=nl.sbuf)
        load_transposed(gate, expert_rows(w1_EFD, e, F, 0, step), first, width)
        load_transposed(up, expert_rows(w1_EFD if interleaved else w3_EFD, e, F, first_up, step), first, width)
        return gate, up

    def down(e, first, width):
        tile = nl.ndarray((P, nF, width), dtype=dtype, buffer=nl.sbuf)
        load_transposed(tile, w2_EDF[e], first, width)
        return tile

    def load(e):
        return gate_up(e, 0, F), down(e, 0, D)

    def biases(e):
        gate = load_bias(expert_rows(b1_EF, e, F, 0, step), F, nl.float32)
        up = load_bias(expert_rows(b1_EF if interleaved else b3_EF, e, F, first_up, step), F, nl.float32)
        out = nl.ndarray((1, D), dtype=dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=out, src=b2_ED[e : e + 1, :])
        return gate, up, out

    def arriving(i, t, height):
        """Rows and their affinities."""
        rows = gather_rows(x_TD, load_column(token_NB, i, t, nl.int32, height), dtype)
        return rows, load_column(affinity_NB, i, t, nl.float32, height)

    def block(i, e, kept, bias, early, rows):
        """early: the first 128 rows and their affinities, already on their way, or nothing. rows: all of B or half."""
        xT, affinities = column_tiles(D, rows, dtype), []
        for t, at, height in parts(rows, P):
            arrived = early[t] if t < len(early) else arriving(i, t, height)
            transpose_rows(xT, arrived[0], at)
            affinities.append(arrived[1])
        hT = []
        for _, _, height in parts(F, P):
            hT.append(nl.ndarray((height, rows), dtype=dtype, buffer=nl.sbuf))
        if save:
            saved = nl.ndarray((P, 2, nF, B), dtype=dtype, buffer=nl.sbuf)
            if F % P > 0:
                nisa.memset(dst=saved[:, :, nF - 1, :], value=0.0)
            if rows < B:
                nisa.memset(dst=saved[:, :, :, rows:B], value=0.0, engine=nisa.engine.gpsimd)
        for _, f0, width in parts(F, FC):
            gate, up = kept[0] if resident else gate_up(e, f0, width)
            for j, at, height in parts(width, P):
                f = f0 // P + j
                g = nl.ndarray((height, rows), dtype=nl.float32, buffer=nl.psum)
                u = nl.ndarray((height, rows), dtype=nl.float32, buffer=nl.psum)
                for pair in ((g, gate), (u, up)):
                    for k, _, depth in parts(D, P):
                        nisa.nc_matmul(
                            dst=pair[0],
                            stationary=pair[1][0:depth, k, at : at + height],
                            moving=xT[k // 4][0:depth, k % 4, :],
                            accumulate=k > 0,
                        )
                bg = bias[0][0:height, f : f + 1] if has_bias else None
                bu = bias[1][0:height, f : f + 1] if has_bias else None
                if save:
                    keep(saved[0:height, 0, f, 0:rows], g, bg, act, limit, has_bias, False)
                    keep(saved[0:height, 1, f, 0:rows], u, bu, act, limit, has_bias, True)
                activate(hT[f], g, u, bg, bu, act, limit, has_bias)
        if save:
            whole = saved_NP2fB.ap(pattern=[[2 * nF * B, P], [1, 2 * nF * B]], scalar_offset=i, indirect_dim=0)
            nisa.dma_copy(dst=whole, src=saved)
        for _, d0, width in parts(D, DC):
            wd = kept[1] if resident else down(e, d0, width)
            for t, top, high in parts(rows, P):
                out = nl.ndarray((high, width), dtype=dtype, buffer=nl.sbuf)
                for _, at, n in parts(width, COLUMNS):
                    y = nl.ndarray((high, n), dtype=nl.float32, buffer=nl.psum)
                    for f, _, height in parts(F, P):
                        nisa.nc_matmul(
                            dst=y,
                            stationary=hT[f][:, top : top + high],
                            moving=wd[0:height, f, at : at + n],
                            accumulate=f > 0,
                        )
                    if has_bias:
                        b2 = bias[2][:, d0 + at : d0 + at + n]
                        nisa.nc_matmul(dst=y, stationary=ones[:, 0:high], moving=b2, accumulate=True)
                    nisa.activation(dst=out[:, at : at + n], op=nl.copy, data=y, scale=affinities[t])
                row = rows_NBD.ap(pattern=[[D, high], [1, width]], offset=top * D + d0, scalar_offset=i, indirect_dim=0)
                nisa.dma_copy(dst=row, src=out)

    coming = None
    for e in range(E):
        bounds = []
        for which in range(6):
            bounds.append(nisa.register_alloc())
            nisa.register_load(bounds[which], bounds_E6[e : e + 1, which])
        first, next_one, third, halved, end, after = bounds
        # Before the next expert's weights, which keep the queue busy. The block after may be another expert's.
        early = [arriving(first, 0, P)]
        if e == 0 and resident:
            coming = load(0)
        if B == P:
            early.append(arriving(after, 0, P))
        kept = coming
        if resident and ahead and e + 1 < E:
            coming = load(e + 1)
        bias = biases(e) if has_bias else None
        block(first, e, kept, bias, early[0:1], B)

        def second(i):
            block(i, e, kept, bias, early[1:2], B)

        def body(i):
            block(i, e, kept, bias, [], B)

        def half(i):
            block(i, e, kept, bias, [], B // 2)

        nl.fori_loop(next_one, third, second)
        nl.fori_loop(third, halved, body)
        nl.fori_loop(halved, end, half)
        if resident and not ahead and e + 1 < E:
            coming = load(e + 1)
    add_up(out_TD, rows_NBD.reshape((N * B, D)), position_TK)
    if save:
        return out_TD, saved_NP2fB
    return out_TD
