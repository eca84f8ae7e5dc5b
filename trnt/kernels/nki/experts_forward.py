"""SwiGLU experts over blocks of tokens, dropless: the forward kernel.

    out[t] = sum over k of affinity[t, k] * expert[ids[t, k]](x[t])
    expert(x) = h W2^T + b2,   h = silu(x W1^T) * (x W3^T)                                         act "silu"
    h = g sigmoid(1.702 g) (u + 1),  g = min(x W1^T + b1, 7),  u = clamp(x W3^T + b3, -7, 7)       act "clamped"

Layout. x_TD tokens; w1_EFD, w3_EFD (F, D) and w2_EDF (D, F) per expert as torchtitan has them (`interleaved`: w1 holds
gate and up in alternating rows, as GPT-OSS does, and w3 is not used). Blocks of B rows in the order of experts, at
least one per expert: rows_NB3, bounds_E6, token_PJ and done_J1 as `layout.Layout` describes them.

Per expert: weights into SBUF with the contraction on the partitions (DMA transpose), the next expert's while this one
computes where two fit. Per block: gather and transpose x; gate and up as [F 128, B] in PSUM; h^T [F, B] is at once the
stationary operand of the down product [tokens 128, D 512], which the affinity scales on its way out of PSUM. Rows go to
a scratch in HBM where the K rows of a token lie together, and one transfer adds up those of 128 tokens: no row has two
writers, and the order is fixed. Tokens lie in the order of their last experts, so that most are added up while experts
still compute (`plan.tries`; a loop of no or one trip, as the layout has seen).

Limits: B 128, 256 or 512; D and F any (the last tile of 128 may be shorter); K at most 16; bf16 or fp32.
SBUF per partition: `plan.forward_room`, and weights of (2 ceil(D/128) F + ceil(F/128) D) elements where they fit, else
in chunks. PSUM: 2 banks gate and up, 1 transposes, 1 down, doubled by the compiler to 8.
Saved for the backward: gate and up before the activation, [N, 128, 2, F/128, B], as SBUF holds them.
"""

from __future__ import annotations

from trnt.kernels.nki.activations import activate, keep
from trnt.kernels.nki.api import nisa, nki, nl
from trnt.kernels.nki.plan import EMPTY, P, forward_chunks, tiles, tries
from trnt.kernels.nki.tiles import (
    COLUMNS,
    add_up,
    check_launch,
    column_tiles,
    combine,
    expert_rows,
    gather_rows,
    load_bias,
    load_column,
    load_tokens,
    load_transposed,
    parts,
    put_rows,
    put_sums,
    transpose_rows,
)


@nki.jit
def experts_forward(
    x_TD,
    rows_NB3,
    bounds_E6,
    token_PJ,
    done_J1,
    top_k,
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
    N, B = rows_NB3.shape[0] - EMPTY, rows_NB3.shape[1]
    E, F = w2_EDF.shape[0], w2_EDF.shape[2]
    dtype = x_TD.dtype
    size = 2 if dtype == nl.bfloat16 else 4
    nD, nF = tiles(D), tiles(F)
    check_launch(B, top_k)
    step, first_up = (2, 1) if interleaved else (1, 0)
    wu = w1_EFD if interleaved else w3_EFD

    resident, ahead, FC, DC = forward_chunks(D, F, B, size, save, nl.tile_size.sbuf_fmax_bytes)
    assert min(FC, DC) > 0, "a block's activations leave no room for weights: take a smaller block"

    out_TD = nl.ndarray((T, D), dtype=dtype, buffer=nl.shared_hbm)
    rows_RD = nl.ndarray((T * top_k, D), dtype=dtype, buffer=nl.private_hbm)
    saved_NP2fB = None
    if save:
        saved_NP2fB = nl.ndarray((N, P, 2, nF, B), dtype=dtype, buffer=nl.shared_hbm)
    ones = nl.ndarray((1, P), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)
    tokens = load_tokens(token_PJ)
    tried = tries(T, E, top_k)

    def gate_or_up(e, which, first, width):
        """Columns first.. of gate (0) or up (1), transposed."""
        tile = nl.ndarray((P, nD, width), dtype=dtype, buffer=nl.sbuf)
        source, row = (w1_EFD, 0) if which == 0 else (wu, first_up)
        load_transposed(tile, expert_rows(source, e, F, row, step), first, width)
        return tile

    def down(e, first, width):
        tile = nl.ndarray((P, nF, width), dtype=dtype, buffer=nl.sbuf)
        load_transposed(tile, w2_EDF[e], first, width)
        return tile

    def whole(e):
        return [gate_or_up(e, 0, 0, F), gate_or_up(e, 1, 0, F), down(e, 0, D)]

    def biases(e):
        gate = load_bias(expert_rows(b1_EF, e, F, 0, step), F, nl.float32)
        up = load_bias(expert_rows(b1_EF if interleaved else b3_EF, e, F, first_up, step), F, nl.float32)
        out = nl.ndarray((1, D), dtype=dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=out, src=b2_ED[e : e + 1, :])
        return gate, up, out

    # What a block leaves for the next, so that its products wait for nothing: x^T, made between this block's gate and
    # up and its down; its rows' affinities and places; and the numbers of the block after it.
    xT = column_tiles(D, B, dtype)
    affinities, places, after = [], [], []
    for _ in range(B // P):
        affinities.append(nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf))
        places.append(nl.ndarray((P, 1), dtype=nl.int32, buffer=nl.sbuf))
        after.append(nl.ndarray((P, 3), dtype=nl.int32, buffer=nl.sbuf))

    def fetch():
        """Rows and numbers of the next block, whose numbers are there."""
        found = []
        for t in range(B // P):
            numbers = nl.ndarray((P, 3), dtype=nl.int32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=numbers, src=after[t])
            found.append((gather_rows(x_TD, numbers[:, 0:1], dtype), numbers))
        return found

    def turn(coming):
        for t in range(B // P):
            transpose_rows(xT, coming[t][0], t * P)

    def adopt(coming, i, ahead):
        """Make the next block's numbers the present ones, and ask for those of block i + `ahead`."""
        for t in range(B // P):
            load_column(after[t], rows_NB3, i, ahead * (B // P) + t)
            nisa.tensor_copy(dst=places[t], src=coming[t][1][:, 1:2])
            nisa.tensor_copy(dst=affinities[t], src=coming[t][1][:, 2:3].view(nl.float32))

    def nothing():
        return

    def block(i, e, kept, bias, rows, meanwhile):
        """rows: all of B, or half. meanwhile: what else comes, behind the next block's rows."""
        coming = fetch()
        meanwhile()
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
            gate = kept[0] if resident else gate_or_up(e, 0, f0, width)
            up = kept[1] if resident else gate_or_up(e, 1, f0, width)
            for j, at, height in parts(width, P):
                f = f0 // P + j
                g = nl.ndarray((height, rows), dtype=nl.float32, buffer=nl.psum)
                u = nl.ndarray((height, rows), dtype=nl.float32, buffer=nl.psum)
                for pair in ((g, gate), (u, up)):
                    for k, _, depth in parts(D, P):
                        nisa.nc_matmul(
                            dst=pair[0],
                            stationary=pair[1][0:depth, k, at : at + height],
                            moving=xT[k // 4][0:depth, k % 4, 0:rows],
                            accumulate=k > 0,
                        )
                bg = bias[0][0:height, f : f + 1] if has_bias else None
                bu = bias[1][0:height, f : f + 1] if has_bias else None
                if save:
                    keep(saved[0:height, 0, f, 0:rows], g, bg, act, limit, has_bias, False)
                    keep(saved[0:height, 1, f, 0:rows], u, bu, act, limit, has_bias, True)
                activate(hT[f], g, u, bg, bu, act, limit, has_bias)
        if save:
            there = saved_NP2fB.ap(pattern=[[2 * nF * B, P], [1, 2 * nF * B]], scalar_offset=i, indirect_dim=0)
            nisa.dma_copy(dst=there, src=saved)
        turn(coming)
        for _, d0, width in parts(D, DC):
            wd = kept[2] if resident else down(e, d0, width)
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
                    nisa.activation(dst=out[:, at : at + n], op=nl.copy, data=y, scale=affinities[t][0:high, :])
                put_rows(rows_RD, places[t][0:high, :], d0, out)
        adopt(coming, i, 2)

    def if_done(j, body):
        """Run the body if the 128 tokens of j are complete when `plan.tries` says so."""
        done = nisa.register_alloc()
        nisa.register_load(done, done_J1[j : j + 1, 0])
        nl.fori_loop(0, done, body)

    def add_up_early(j):
        sums = nl.ndarray((min(P, T - j * P), D), dtype=dtype, buffer=nl.sbuf)

        def body(_):
            add_up(sums, rows_RD, j, top_k)

        if_done(j, body)
        return j, sums

    def put_early(j, sums):
        def body(_):
            put_sums(out_TD, tokens, j, sums)

        if_done(j, body)

    def combine_late(j):
        done = nisa.register_alloc()
        nisa.register_load(done, done_J1[j : j + 1, 0])

        def body(_):
            combine(out_TD, rows_RD, tokens, j, top_k)

        nl.fori_loop(done, 1, body)

    for t in range(B // P):
        load_column(after[t], rows_NB3, None, t)
    coming = fetch()
    kept = whole(0) if resident else []
    turn(coming)
    adopt(coming, None, 1)
    before = []  # sums of tokens, made while the expert before computed
    for e in range(E):
        bounds = []
        for which in range(6):
            bounds.append(nisa.register_alloc())
            nisa.register_load(bounds[which], bounds_E6[e : e + 1, which])
        first, second, third, fourth, halved, end = bounds
        bias = biases(e) if has_bias else None
        more = resident and ahead and e + 1 < E
        trying, now, then = [], [], []
        for j in range(tiles(T)):
            if tried[j] == e:
                trying.append(j)

        def body(i):
            block(i, e, kept, bias, B, nothing)

        def half(i):
            block(i, e, kept, bias, B // 2, nothing)

        def sums_of_tokens():
            """What an expert ago was added up goes out: gpsimd, which writes the addresses, would wait for newer."""
            for old in before:
                put_early(old[0], old[1])
            for j in trying[0:1]:
                now.append(add_up_early(j))

        # One large transfer behind each block's rows, and the next block's rows come in time.
        block(first, e, kept, bias, B, sums_of_tokens)
        nl.fori_loop(second, third, body)
        if more:
            then.append(gate_or_up(e + 1, 0, 0, F))
        for j in trying[1:2]:
            now.append(add_up_early(j))
        nl.fori_loop(third, fourth, body)
        if more:
            then.append(gate_or_up(e + 1, 1, 0, F))
        for j in trying[2:]:
            now.append(add_up_early(j))
        nl.fori_loop(fourth, halved, body)
        nl.fori_loop(halved, end, half)
        if more:
            then.append(down(e + 1, 0, D))
        elif resident and e + 1 < E:
            then = whole(e + 1)
        kept, before = then, now
    for old in before:
        put_early(old[0], old[1])
    for j in range(tiles(T)):
        if tried[j] < E:
            combine_late(j)
        else:
            combine(out_TD, rows_RD, tokens, j, top_k)
    if save:
        return out_TD, saved_NP2fB
    return out_TD
