"""SwiGLU experts over blocks of tokens: the backward kernel. Layouts as in `experts_forward`; gradients of all inputs.

With dy the gathered rows of dout, a the affinity of a row, and h, g, u as in the forward:

    p = dy W2         d_a = sum_F p h + sum_D dy b2       dh = a p     dW2 = dy^T (a h)     db2 = sum a dy
    dg = dh u silu'(g)     du = dh silu(g)     dW1 = dg^T x     dW3 = du^T x     dx = dg W1 + du W3

The down projection's output is needed nowhere. Clamped form: dg and du are 0 where the clamp was active.

p, dg and du are made as [F 128, B], as the saved g and u lie and as dx wants its stationary operand; the weight
gradients contract over tokens, so h, dg and du are transposed once more on the tensor engine (3 F/128 per 128 tokens,
5 % of the products). The sum over F of p h is a product with ones.

Weight gradients are fp32 and summed in PSUM over a block's tokens; an expert's first block writes them (zeros where the
expert has no token), each further one adds to them in HBM (`dma_compute`, static addresses). dx: rows in HBM, then
added up per token as in the forward.

Limits: as the forward's. SBUF per partition, s bytes an element, n = B/128: 2 n D s (x, dy) + ceil(D/128) B s (dy^T)
+ 5 ceil(F/128) B s (saved, dg^T, du^T, p h) + 3 n F s (token-major h, dg, du) + 28 B (activation) + 4 max(D, F)
(gradient rows) + weights ceil(D/128) F s + 2 ceil(F/128) D s where they fit, else in chunks. PSUM: at most 4 banks.
"""

from __future__ import annotations

from trnt.kernels.nki.api import nisa, nki, nl
from trnt.kernels.nki.tiles import (
    COLUMNS,
    SLACK,
    P,
    add_up,
    check_launch,
    expert_rows,
    gather_rows,
    load_bias,
    load_column,
    load_wide,
    parts,
    transpose_rows,
    width_that_fits,
)


def room_for_weights(D, F, B, size):
    """Bytes per partition left for weights beside one block's activations."""
    nD, nF, n = (D + P - 1) // P, (F + P - 1) // P, B // P
    block = 2 * n * D * size + nD * B * size + 5 * nF * B * size + 3 * n * F * size + 28 * B + 4 * max(D, F)
    return nl.tile_size.sbuf_fmax_bytes - SLACK - max(block, D * (4 + size))


def derivatives(hT, dg, du, phT, g, u, p, affinity, act, limit):
    """h, p h, dg and du, all [f, B], from the saved g and u, p in PSUM and the affinities [f, B]."""
    shape = (hT.shape[0], hT.shape[1])
    slope = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    value = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    other = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    dh = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    if act == "silu":
        nisa.activation(dst=slope, op=nl.silu_dx, data=g)
        nisa.activation(dst=value, op=nl.silu, data=g)
        nisa.tensor_copy(dst=other, src=u)
    else:
        nisa.tensor_scalar(dst=other, data=g, op0=nl.minimum, operand0=limit)
        nisa.activation(dst=slope, op=nl.gelu_apprx_sigmoid_dx, data=other)
        nisa.activation(dst=value, op=nl.gelu_apprx_sigmoid, data=other)
        nisa.tensor_scalar(dst=other, data=g, op0=nl.less_equal, operand0=limit)
        nisa.tensor_tensor(dst=slope, data1=slope, data2=other, op=nl.multiply)
        nisa.tensor_scalar(dst=other, data=u, op0=nl.minimum, operand0=limit, op1=nl.maximum, operand1=-limit)
        nisa.tensor_scalar(dst=other, data=other, op0=nl.add, operand0=1.0)
    nisa.tensor_tensor(dst=hT, data1=value, data2=other, op=nl.multiply)
    nisa.tensor_tensor(dst=phT, data1=p, data2=hT, op=nl.multiply)
    nisa.tensor_tensor(dst=dh, data1=p, data2=affinity, op=nl.multiply)
    nisa.tensor_tensor(dst=slope, data1=slope, data2=other, op=nl.multiply)
    nisa.tensor_tensor(dst=dg, data1=dh, data2=slope, op=nl.multiply)
    if act == "silu":
        nisa.tensor_tensor(dst=du, data1=dh, data2=value, op=nl.multiply)
        return
    nisa.tensor_scalar(dst=other, data=u, op0=nl.less_equal, operand0=limit)
    nisa.tensor_tensor(dst=value, data1=value, data2=other, op=nl.multiply)
    nisa.tensor_scalar(dst=other, data=u, op0=nl.greater_equal, operand0=-limit)
    nisa.tensor_tensor(dst=value, data1=value, data2=other, op=nl.multiply)
    nisa.tensor_tensor(dst=du, data1=dh, data2=value, op=nl.multiply)


def put(target, tile, adding):
    """A weight gradient's part in HBM: written by the first block, added to by the others."""
    if adding:
        nisa.dma_compute(dst=target, srcs=[target, tile], reduce_op=nl.add)
    else:
        nisa.dma_copy(dst=target, src=tile)


@nki.jit
def experts_backward(
    dout_TD,
    x_TD,
    token_NB,
    affinity_NB,
    bounds_E3,
    position_TK,
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
    """(dx_TD in x's dtype; affinity gradient (N, B), dw1, dw2, dw3 and, with biases, db1, db2, db3, all fp32).

    Interleaved: dw1 and db1 hold both, and dw3 and db3 are not returned.
    """
    T, D = x_TD.shape
    N, B = token_NB.shape
    E, F = w2_EDF.shape[0], w2_EDF.shape[2]
    dtype = x_TD.dtype
    size = 2 if dtype == nl.bfloat16 else 4
    nD, nF = (D + P - 1) // P, (F + P - 1) // P
    check_launch(B)
    step, first_up = (2, 1) if interleaved else (1, 0)

    room = room_for_weights(D, F, B, size)
    resident = (nD * F + 2 * nF * D) * size <= room
    FC = F if resident else width_that_fits(room, nD * size, P, F)
    DC = D if resident else width_that_fits(room, 2 * nF * size, P, D)
    assert min(FC, DC) > 0, "a block's activations leave no room for weights: take a smaller block"

    dx_TD = nl.ndarray((T, D), dtype=dtype, buffer=nl.shared_hbm)
    rows_NBD = nl.ndarray((N, B, D), dtype=dtype, buffer=nl.private_hbm)
    da_NB = nl.ndarray((N, B), dtype=nl.float32, buffer=nl.shared_hbm)
    dw1 = nl.ndarray((E, step * F, D), dtype=nl.float32, buffer=nl.shared_hbm)
    dw2 = nl.ndarray((E, D, F), dtype=nl.float32, buffer=nl.shared_hbm)
    dw3 = dw1 if interleaved else nl.ndarray((E, F, D), dtype=nl.float32, buffer=nl.shared_hbm)
    if has_bias:
        db1 = nl.ndarray((E, step * F), dtype=nl.float32, buffer=nl.shared_hbm)
        db2 = nl.ndarray((E, D), dtype=nl.float32, buffer=nl.shared_hbm)
        db3 = db1 if interleaved else nl.ndarray((E, F), dtype=nl.float32, buffer=nl.shared_hbm)
    ones = nl.ndarray((P, 1), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=ones, value=1.0)

    def down(e, first, width):
        tile = nl.ndarray((P, nD, width), dtype=dtype, buffer=nl.sbuf)
        load_wide(tile, w2_EDF[e], first, width)
        return tile

    def gate_up(e, first, width):
        gate = nl.ndarray((P, nF, width), dtype=dtype, buffer=nl.sbuf)
        up = nl.ndarray((P, nF, width), dtype=dtype, buffer=nl.sbuf)
        load_wide(gate, expert_rows(w1_EFD, e, F, 0, step), first, width)
        load_wide(up, expert_rows(w1_EFD if interleaved else w3_EFD, e, F, first_up, step), first, width)
        return gate, up

    def weight_gradients(target, lefts, rights, rows, columns, adding):
        """target [rows, columns] = sum over token tiles of left^T right, 128 rows at a time."""
        for _, r, height in parts(rows, P):
            row = nl.ndarray((height, columns), dtype=nl.float32, buffer=nl.sbuf)
            for _, c, n in parts(columns, COLUMNS):
                sums = nl.ndarray((height, n), dtype=nl.float32, buffer=nl.psum)
                for t in range(B // P):
                    nisa.nc_matmul(
                        dst=sums,
                        stationary=lefts[t][:, r : r + height],
                        moving=rights[t][:, c : c + n],
                        accumulate=t > 0,
                    )
                nisa.tensor_copy(dst=row[:, c : c + n], src=sums)
            put(target[r : r + height, :], row, adding)

    def block(i, e, kept, adding):
        xs, dys, affinities = [], [], []
        b2 = load_bias(b2_ED[e], D, dtype) if has_bias else None
        dyT = nl.ndarray((P, nD, B), dtype=dtype, buffer=nl.sbuf)
        for t in range(B // P):
            ids = load_column(token_NB, i, t, nl.int32)
            xs.append(gather_rows(x_TD, ids, dtype))
            dys.append(gather_rows(dout_TD, ids, dtype))
            affinities.append(load_column(affinity_NB, i, t, nl.float32))
            transpose_rows(dyT, dys[t], t * P)
        wide = nl.ndarray((P, B), dtype=nl.float32, buffer=nl.sbuf)
        nisa.dma_copy(dst=wide, src=affinity_NB.ap(pattern=[[0, P], [1, B]], scalar_offset=i, indirect_dim=0))
        saved = nl.ndarray((P, 2, nF, B), dtype=dtype, buffer=nl.sbuf)
        whole = saved_NP2fB.ap(pattern=[[2 * nF * B, P], [1, 2 * nF * B]], scalar_offset=i, indirect_dim=0)
        nisa.dma_copy(dst=saved, src=whole)
        dgT = nl.ndarray((P, nF, B), dtype=dtype, buffer=nl.sbuf)
        duT = nl.ndarray((P, nF, B), dtype=dtype, buffer=nl.sbuf)
        phT = nl.ndarray((P, nF, B), dtype=dtype, buffer=nl.sbuf)
        hs, dgs, dus = [], [], []
        for _ in range(B // P):
            hs.append(nl.ndarray((P, F), dtype=dtype, buffer=nl.sbuf))
            dgs.append(nl.ndarray((P, F), dtype=dtype, buffer=nl.sbuf))
            dus.append(nl.ndarray((P, F), dtype=dtype, buffer=nl.sbuf))
        for _, f0, width in parts(F, FC):
            w2 = kept[0] if resident else down(e, f0, width)
            for j, at, height in parts(width, P):
                f = f0 // P + j
                p = nl.ndarray((height, B), dtype=nl.float32, buffer=nl.psum)
                for k, _, depth in parts(D, P):
                    nisa.nc_matmul(
                        dst=p,
                        stationary=w2[0:depth, k, at : at + height],
                        moving=dyT[0:depth, k, :],
                        accumulate=k > 0,
                    )
                hT = nl.ndarray((height, B), dtype=dtype, buffer=nl.sbuf)
                dg, du, ph = dgT[0:height, f, :], duT[0:height, f, :], phT[0:height, f, :]
                g, u = saved[0:height, 0, f, :], saved[0:height, 1, f, :]
                derivatives(hT, dg, du, ph, g, u, p, wide[0:height, :], act, limit)
                for t in range(B // P):
                    bank = nl.ndarray((P, 3, P), dtype=dtype, buffer=nl.psum)
                    tokens = slice(t * P, (t + 1) * P)
                    nisa.nc_transpose(dst=bank[:, 0, 0:height], data=hT[:, tokens])
                    nisa.nc_transpose(dst=bank[:, 1, 0:height], data=dg[:, tokens])
                    nisa.nc_transpose(dst=bank[:, 2, 0:height], data=du[:, tokens])
                    F_ = slice(f * P, f * P + height)
                    nisa.activation(dst=hs[t][:, F_], op=nl.copy, data=bank[:, 0, 0:height], scale=affinities[t])
                    nisa.tensor_copy(dst=dgs[t][:, F_], src=bank[:, 1, 0:height])
                    nisa.tensor_copy(dst=dus[t][:, F_], src=bank[:, 2, 0:height])
        for t in range(B // P):
            sums = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.psum)
            for f, _, height in parts(F, P):
                nisa.nc_matmul(
                    dst=sums,
                    stationary=phT[0:height, f, t * P : (t + 1) * P],
                    moving=ones[0:height, :],
                    accumulate=f > 0,
                )
            if has_bias:
                for k, _, depth in parts(D, P):
                    nisa.nc_matmul(
                        dst=sums,
                        stationary=dyT[0:depth, k, t * P : (t + 1) * P],
                        moving=b2[0:depth, k : k + 1],
                        accumulate=True,
                    )
            da = nl.ndarray((P, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.tensor_copy(dst=da, src=sums)
            entries = da_NB.ap(pattern=[[1, P], [1, 1]], offset=t * P, scalar_offset=i, indirect_dim=0)
            nisa.dma_copy(dst=entries, src=da)
        for _, d0, width in parts(D, DC):
            w1, w3 = kept[1] if resident else gate_up(e, d0, width)
            for t in range(B // P):
                dx = nl.ndarray((P, width), dtype=dtype, buffer=nl.sbuf)
                for _, at, n in parts(width, COLUMNS):
                    sums = nl.ndarray((P, n), dtype=nl.float32, buffer=nl.psum)
                    for f, _, height in parts(F, P):
                        tokens = slice(t * P, (t + 1) * P)
                        first, second = dgT[0:height, f, tokens], duT[0:height, f, tokens]
                        nisa.nc_matmul(
                            dst=sums, stationary=first, moving=w1[0:height, f, at : at + n], accumulate=f > 0
                        )
                        nisa.nc_matmul(
                            dst=sums, stationary=second, moving=w3[0:height, f, at : at + n], accumulate=True
                        )
                    nisa.tensor_copy(dst=dx[:, at : at + n], src=sums)
                row = rows_NBD.ap(pattern=[[D, P], [1, width]], offset=t * P * D + d0, scalar_offset=i, indirect_dim=0)
                nisa.dma_copy(dst=row, src=dx)
        weight_gradients(expert_rows(dw1, e, F, 0, step), dgs, xs, F, D, adding)
        weight_gradients(expert_rows(dw3, e, F, first_up, step), dus, xs, F, D, adding)
        weight_gradients(dw2[e], dys, hs, D, F, adding)
        if has_bias:
            for f, first, height in parts(F, P):
                for pair in ((dgT, expert_rows(db1, e, F, 0, step)), (duT, expert_rows(db3, e, F, first_up, step))):
                    total = nl.ndarray((height, 1), dtype=nl.float32, buffer=nl.sbuf)
                    nisa.tensor_reduce(dst=total, op=nl.add, data=pair[0][0:height, f, :], axis=1)
                    put(pair[1][first : first + height].expand_dim(1), total, adding)
            columns = []
            for t in range(B // P):
                column = nl.ndarray((P, 1), dtype=dtype, buffer=nl.sbuf)
                nisa.tensor_copy(dst=column, src=affinities[t])
                columns.append(column)
            weight_gradients(db2[e : e + 1, :], columns, dys, 1, D, adding)

    for e in range(E):
        kept = (down(e, 0, F), gate_up(e, 0, D)) if resident else None
        begin, second, end = nisa.register_alloc(), nisa.register_alloc(), nisa.register_alloc()
        nisa.register_load(begin, bounds_E3[e : e + 1, 0])
        nisa.register_load(second, bounds_E3[e : e + 1, 1])
        nisa.register_load(end, bounds_E3[e : e + 1, 2])
        block(begin, e, kept, False)

        def body(i):
            block(i, e, kept, True)

        nl.fori_loop(second, end, body)
    add_up(dx_TD, rows_NBD.reshape((N * B, D)), position_TK)
    if has_bias and interleaved:
        return dx_TD, da_NB, dw1, dw2, db1, db2
    if has_bias:
        return dx_TD, da_NB, dw1, dw2, dw3, db1, db2, db3
    if interleaved:
        return dx_TD, da_NB, dw1, dw2
    return dx_TD, da_NB, dw1, dw2, dw3
