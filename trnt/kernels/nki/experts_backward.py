"""SwiGLU experts over blocks of tokens: the backward kernel. Layouts as in `experts_forward`; gradients of all inputs.

With dy the gathered rows of dout, a the affinity of a row, and h, g, u as in the forward:

    p = dy W2         d_a = sum_F p h + sum_D dy b2       dW2 = dy^T (a h)         db2 = sum a dy
    dg = p u silu'(g)     du = p silu(g)     dW1 = (a dg)^T x     dW3 = (a du)^T x     dx = a (dg W1 + du W3)

The down projection's output is needed nowhere. Clamped form: dg and du are 0 where the clamp was active.

p, dg and du are made as [F 128, B], as the saved g and u lie and as dx wants its stationary operand; the weight
gradients contract over tokens, so h, dg and du are transposed once more on the tensor engine (3 F/128 per 128 tokens,
5 % of the products) and get the affinity, a number per partition then, on their way out of PSUM. The sum over F of p h
is a product with ones.

Groups (`layout.grouped`). The blocks of an expert are taken up to `together` at a time: a group's weight gradients are
summed in PSUM over all of its tokens and written once, in x's dtype. One loop for each number of blocks, over the
experts whose first group has so many, writes (zeros where there is no token); a last loop adds the groups that follow.
Within a group the tensor engine goes from a tile's p to the products of the tile before, whose derivatives
the other engines have made meanwhile. dx: rows in HBM, then added up per token as in the forward.

Limits: as the forward's. SBUF per partition: `plan.py`. PSUM: at most 4 banks of dx, 2 of p, 1 of transposes, 1 of d_a.
"""

from __future__ import annotations

from trnt.kernels.nki.activations import derivatives
from trnt.kernels.nki.api import nisa, nki, nl
from trnt.kernels.nki.plan import EMPTY, P, backward_chunks, tiles
from trnt.kernels.nki.tiles import (
    COLUMNS,
    check_launch,
    column_tiles,
    combine,
    gather_rows,
    load_column,
    load_rows,
    load_tokens,
    parts,
    put_rows,
    transpose_rows,
)
from trnt.kernels.nki.weight_gradients import of_biases, of_weights


@nki.jit
def experts_backward(
    dout_TD,
    x_TD,
    rows_NB3,
    groups_G2,
    classes_R2,
    token_PJ,
    top_k,
    saved_NP2fB,
    w1_EFD,
    w2_EDF,
    w3_EFD,
    b2_ED=None,
    act="silu",
    limit=7.0,
    interleaved=False,
    has_bias=False,
):
    """(dx_TD; affinity gradient (N, B) fp32; dw1, dw2, dw3 and, with biases, db1, db2, db3), in x's dtype.

    Interleaved: dw1 and db1 hold both, and dw3 and db3 are not returned.
    """
    T, D = x_TD.shape
    N, B = rows_NB3.shape[0] - EMPTY, rows_NB3.shape[1]
    E, F = w2_EDF.shape[0], w2_EDF.shape[2]
    dtype = x_TD.dtype
    size = 2 if dtype == nl.bfloat16 else 4
    nF, per_block = tiles(F), B // P
    most = classes_R2.shape[0] - 1
    check_launch(B, top_k)
    step, first_up = (2, 1) if interleaved else (1, 0)
    wu = w1_EFD if interleaved else w3_EFD

    resident, FC, DC, held = backward_chunks(D, F, B, size, most, nl.tile_size.sbuf_fmax_bytes)
    woven = resident and per_block * len(parts(D, COLUMNS)) <= 4  # dx in PSUM while h is still being made
    assert min(FC, held) > 0, "a group's activations leave no room for weights: take a smaller block"

    dx_TD = nl.ndarray((T, D), dtype=dtype, buffer=nl.shared_hbm)
    rows_RD = nl.ndarray((T * top_k, D), dtype=dtype, buffer=nl.private_hbm)
    da_NB = nl.ndarray((N, B), dtype=nl.float32, buffer=nl.shared_hbm)
    dw1 = nl.ndarray((E, step * F, D), dtype=dtype, buffer=nl.shared_hbm)
    dw2 = nl.ndarray((E, D, F), dtype=dtype, buffer=nl.shared_hbm)
    dw3 = dw1 if interleaved else nl.ndarray((E, F, D), dtype=dtype, buffer=nl.shared_hbm)
    if has_bias:
        db1 = nl.ndarray((E, step * F), dtype=dtype, buffer=nl.shared_hbm)
        db2 = nl.ndarray((E, D), dtype=dtype, buffer=nl.shared_hbm)
        db3 = db1 if interleaved else nl.ndarray((E, F), dtype=dtype, buffer=nl.shared_hbm)
    ones = nl.ndarray((P, 1), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)

    def down(e, begin, width):
        return load_rows(w2_EDF, e, 0, 1, D, begin, width, dtype)

    def gate_up(e, tile, count, begin, width):
        """Columns begin.. of w1 and w3 in `count` tiles of 128 rows."""
        rows = min(F - tile * P, count * P)
        gate = load_rows(w1_EFD, e, tile * P * step, step, rows, begin, width, dtype)
        return gate, load_rows(wu, e, tile * P * step + first_up, step, rows, begin, width, dtype)

    def group(i, count, adding):
        """All gradients of the `count` blocks of group i; adding: to what the expert's first group wrote."""
        pair = nl.ndarray((1, 2), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=pair, src=groups_G2.ap(pattern=[[2, 1], [1, 2]], scalar_offset=i, indirect_dim=0))
        e, first = nisa.register_alloc(), nisa.register_alloc()
        nisa.register_load(e, pair[:, 0:1])
        nisa.register_load(first, pair[:, 1:2])
        xs, dys, made, affinities, places = [], [], [], [], []  # for each 128 tokens; made: a h, a dg, a du
        dyTs, saveds, dgTs, duTs, phTs = [], [], [], [], []  # for each block
        banks = []  # for each block that is woven: dx in PSUM

        def arrive(c):
            """The rows of block c, dy transposed, and what the forward saved."""
            dyTs.append(column_tiles(D, B, dtype))
            for t in range(per_block):
                numbers = nl.ndarray((P, 3), dtype=nl.int32, buffer=nl.sbuf)
                load_column(numbers, rows_NB3, first, c * per_block + t)
                ids = numbers[:, 0:1]
                places.append(numbers[:, 1:2])
                affinities.append(numbers[:, 2:3].view(nl.float32))
                dy = gather_rows(dout_TD, ids, dtype)
                transpose_rows(dyTs[c], dy, t * P)
                dys.append(dy)
                xs.append(gather_rows(x_TD, ids, dtype))
                made.append(nl.ndarray((P, 3, F), dtype=dtype, buffer=nl.sbuf))
            saved = nl.ndarray((P, 2, nF, B), dtype=dtype, buffer=nl.sbuf)
            pattern, offset = [[2 * nF * B, P], [1, 2 * nF * B]], c * P * 2 * nF * B
            whole = saved_NP2fB.ap(pattern=pattern, offset=offset, scalar_offset=first, indirect_dim=0)
            nisa.dma_copy(dst=saved, src=whole)
            saveds.append(saved)
            for lists in (dgTs, duTs, phTs):
                lists.append([])

        def derive(c, f, height, w2, at):
            """h^T [height, B] of tile f of F from columns at.. of w2; dg^T, du^T and p h besides."""
            p = nl.ndarray((height, B), dtype=nl.float32, buffer=nl.psum)
            for k, _, depth in parts(D, P):
                moving = dyTs[c][k // 4][0:depth, k % 4, :]
                nisa.nc_matmul(dst=p, stationary=w2[0:depth, k, at : at + height], moving=moving, accumulate=k > 0)
            hT = nl.ndarray((height, B), dtype=dtype, buffer=nl.sbuf)
            for lists in (dgTs, duTs, phTs):
                lists[c].append(nl.ndarray((height, B), dtype=dtype, buffer=nl.sbuf))
            g, u = saveds[c][0:height, 0, f, :], saveds[c][0:height, 1, f, :]
            derivatives(hT, dgTs[c][f], duTs[c][f], phTs[c][f], g, u, p, act, limit)
            return hT

        def dx_banks(width):
            """PSUM for `width` columns of dx of a block: for each 128 tokens, for each 512 columns."""
            sums = []
            for _ in range(per_block):
                row = []
                for _, _, n in parts(width, COLUMNS):
                    row.append(nl.ndarray((P, n), dtype=nl.float32, buffer=nl.psum))
                sums.append(row)
            return sums

        def add_dx(sums, c, t, f, held_weights, tile, at, n):
            """What tile f of F, `tile` and columns at.. of the weights, gives to dx of tile t of block c."""
            height, tokens = dgTs[c][f].shape[0], slice(t * P, (t + 1) * P)
            for which, left in ((0, dgTs[c][f]), (1, duTs[c][f])):
                nisa.nc_matmul(
                    dst=sums,
                    stationary=left[:, tokens],
                    moving=held_weights[which][0:height, tile, at : at + n],
                    accumulate=f + which > 0,
                )

        def finish(c, f, hT):
            """Tile f of F with tokens on the partitions, times the affinity; its part of dx."""
            height = hT.shape[0]
            for t in range(per_block):
                bank = nl.ndarray((P, 3, P), dtype=dtype, buffer=nl.psum)
                row, tokens = c * per_block + t, slice(t * P, (t + 1) * P)
                nisa.nc_transpose(dst=bank[:, 0, 0:height], data=hT[:, tokens])
                nisa.nc_transpose(dst=bank[:, 1, 0:height], data=dgTs[c][f][:, tokens])
                nisa.nc_transpose(dst=bank[:, 2, 0:height], data=duTs[c][f][:, tokens])
                place, out = made[row][:, :, f * P : f * P + height], bank[:, :, 0:height]
                nisa.activation(dst=place, op=nl.copy, data=out, scale=affinities[row])
            if woven:
                if f == 0:
                    banks.append(dx_banks(D))
                for t in range(per_block):
                    for k, at, n in parts(D, COLUMNS):
                        add_dx(banks[c][t][k], c, t, f, weights, f, at, n)
            if f == nF - 1:
                leave(c)

        def affinity_gradient(c, t):
            sums = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.psum)
            tokens = slice(t * P, (t + 1) * P)
            for f in range(nF):
                ph = phTs[c][f]
                nisa.nc_matmul(dst=sums, stationary=ph[:, tokens], moving=ones[0 : ph.shape[0], :], accumulate=f > 0)
            if has_bias:
                for k, _, depth in parts(D, P):
                    dyT = dyTs[c][k // 4][0:depth, k % 4, tokens]
                    nisa.nc_matmul(dst=sums, stationary=dyT, moving=b2[0:depth, k : k + 1], accumulate=True)
            da = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=da, src=sums)
            offset = (c * per_block + t) * P
            entries = da_NB.ap(pattern=[[1, P], [1, 1]], offset=offset, scalar_offset=first, indirect_dim=0)
            nisa.dma_copy(dst=entries, src=da)

        def sum_dx(c, begin, width):
            """Columns begin.. of dx of block c, in PSUM."""
            sums = dx_banks(width)
            for _, tile, count in parts(nF, held):
                arrived = weights if resident else gate_up(e, tile, count, begin, width)
                for t in range(per_block):
                    for k, at, n in parts(width, COLUMNS):
                        for f in range(tile, tile + count):
                            add_dx(sums[t][k], c, t, f, arrived, f - tile, at + begin if resident else at, n)
            return sums

        def leave(c):
            """d_a and dx of block c."""
            for t in range(per_block):
                affinity_gradient(c, t)
            for _, begin, width in parts(D, D if woven else DC):
                sums = banks[c] if woven else sum_dx(c, begin, width)
                for t in range(per_block):
                    row = c * per_block + t
                    dx = nl.ndarray((P, width), dtype=dtype, buffer=nl.sbuf)
                    for k, at, n in parts(width, COLUMNS):
                        nisa.activation(dst=dx[:, at : at + n], op=nl.copy, data=sums[t][k], scale=affinities[row])
                    put_rows(rows_RD, places[row], begin, dx)

        arrive(0)
        w2 = down(e, 0, F) if resident else None
        weights = gate_up(e, 0, nF, 0, D) if resident else None
        b2 = load_rows(b2_ED, e, 0, 1, D, 0, 1, dtype) if has_bias else None
        before = []  # the tile whose derivatives the other engines make meanwhile
        for c in range(count):
            for _, f0, width in parts(F, FC):
                if not resident:
                    w2 = down(e, f0, width)
                for j, at, height in parts(width, P):
                    f = f0 // P + j
                    hT = derive(c, f, height, w2, at)
                    if f == nF - 1 and c + 1 < count:
                        arrive(c + 1)
                    for old in before:
                        finish(old[0], old[1], old[2])
                    before = [(c, f, hT)]
        for last in before:
            finish(last[0], last[1], last[2])
        hs, dgs, dus = [], [], []
        for tile in made:
            hs.append(tile[:, 0, :])
            dgs.append(tile[:, 1, :])
            dus.append(tile[:, 2, :])
        of_weights(dw1, e, step, 0, dgs, xs, F, adding)
        of_weights(dw3, e, step, first_up, dus, xs, F, adding)
        of_weights(dw2, e, 1, 0, dys, hs, D, adding)
        if has_bias:
            columns = []
            for affinity in affinities:
                column = nl.ndarray((P, 1), dtype=dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=column, src=affinity)
                columns.append(column)
            of_biases(db1, e, step, 0, [ones] * len(dgs), dgs, F, adding)
            of_biases(db3, e, step, first_up, [ones] * len(dus), dus, F, adding)
            of_biases(db2, e, 1, 0, columns, dys, D, adding)

    def loop(row, count, adding):
        """The groups of one class."""
        begin, end = nisa.register_alloc(), nisa.register_alloc()
        nisa.register_load(begin, classes_R2[row : row + 1, 0])
        nisa.register_load(end, classes_R2[row : row + 1, 1])

        def body(i):
            group(i, count, adding)

        nl.fori_loop(begin, end, body)

    for count in range(1, most + 1):
        loop(count - 1, count, False)
    loop(most, most, True)
    tokens = load_tokens(token_PJ)
    for j in range(tiles(T)):
        combine(dx_TD, rows_RD, tokens, j, top_k)
    if has_bias and interleaved:
        return dx_TD, da_NB, dw1, dw2, db1, db2
    if has_bias:
        return dx_TD, da_NB, dw1, dw2, dw3, db1, db2, db3
    if interleaved:
        return dx_TD, da_NB, dw1, dw2
    return dx_TD, da_NB, dw1, dw2, dw3
