"""What the kernels share: sizes, gathers, transposes, and adding up the rows of a token. Plain functions, inlined.

P = 128 partitions. An expert's tokens come in blocks of B = 128, 256 or 512 rows; rows beyond an expert's last token
are padding, whose token number is T: their gather is skipped and leaves zeros.
"""

from __future__ import annotations

from trnt.kernels.nki.api import nisa, nl
from trnt.kernels.nki.plan import SLACK, P, tiles

COLUMNS = 512  # fp32 columns of one PSUM bank, and the widest moving operand


def check_launch(B):
    """What both experts kernels ask of their blocks and of the launch grid."""
    assert B in (128, 256, 512), "blocks are of 128, 256 or 512 rows"
    assert nl.num_programs() == 1, "one physical core: set NEURON_LOGICAL_NC_CONFIG=1"


def parts(length, step):
    """[(number, first, size), ...]: `length` in steps, the last one shorter."""
    found = []
    for first in range(0, length, step):
        found.append((first // step, first, min(step, length - first)))
    return found


def gather_rows(x_TD, ids_P1, dtype):
    """A tile [rows, D] with the rows of x that ids name; zeros where the id is T."""
    D = x_TD.shape[1]
    height = ids_P1.shape[0]
    rows = nl.ndarray((height, D), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=rows, value=0.0, engine=nisa.engine.gpsimd)
    picked = x_TD.ap(pattern=[[D, height], [1, D]], vector_offset=ids_P1, indirect_dim=0)
    nisa.dma_copy(dst=rows, src=picked, oob_mode=nisa.oob_mode.skip)
    return rows


def load_column(source_NB, block, tile, dtype, height=P):
    """A tile [height, 1] with the entries of so many rows, from 128 tile, of a block: token numbers or affinities."""
    column = nl.ndarray((height, 1), dtype=dtype, buffer=nl.sbuf)
    entries = source_NB.ap(pattern=[[1, height], [1, 1]], offset=tile * P, scalar_offset=block, indirect_dim=0)
    nisa.dma_copy(dst=column, src=entries)
    return column


def column_tiles(D, B, dtype):
    """Room for transposed rows: a tile [P, 4, B] for each 512 columns of D; column 128 k + p in tile k // 4."""
    made = []
    for _ in parts(D, 4 * P):
        made.append(nl.ndarray((P, 4, B), dtype=dtype, buffer=nl.sbuf))
    return made


def transpose_rows(dsts, rows_PD, first):
    """Columns first.. of `column_tiles` = the rows, transposed, four to a PSUM bank."""
    height, D = rows_PD.shape
    for number, begin, size in parts(D, 4 * P):
        bank = nl.ndarray((P, 4, height), dtype=rows_PD.dtype, buffer=nl.psum)
        full = size // P
        for j, at, width in parts(size, P):
            nisa.nc_transpose(dst=bank[0:width, j, :], data=rows_PD[:, begin + at : begin + at + width])
        dst = dsts[number][:, :, first : first + height]
        if full > 0:
            nisa.tensor_copy(dst=dst[:, 0:full, :], src=bank[:, 0:full, :])
        if size % P > 0:
            rest = size % P
            nisa.tensor_copy(dst=dst[0:rest, full, :], src=bank[0:rest, full, :])


def add_up(out_TD, rows_ND, position_TK):
    """out[t] = the sum over k of rows[position[t, k]], in fp32, in the order of k: no two writers, no scatter.

    Up to eight tiles of tokens at once: one tile's additions wait for each other.
    """
    T, K = position_TK.shape
    D = out_TD.shape[1]
    size = 2 if out_TD.dtype == nl.bfloat16 else 4
    together = max(1, min(8, (nl.tile_size.sbuf_fmax_bytes - SLACK) // (D * (4 + size))))
    for _, first, count in parts(T, together * P):
        group = []
        for _, at, height in parts(count, P):
            begin = first + at
            where = nl.ndarray((height, K), dtype=nl.int32, buffer=nl.sbuf)
            nisa.dma_copy(dst=where, src=position_TK[begin : begin + height, :])
            total = nl.ndarray((height, D), dtype=nl.float32, buffer=nl.sbuf)
            group.append((begin, height, where, total))
        for k in range(K):
            for _, height, where, total in group:
                row = rows_ND.ap(pattern=[[D, height], [1, D]], vector_offset=where[:, k : k + 1], indirect_dim=0)
                if k == 0:
                    nisa.dma_copy(dst=total, src=row)
                else:
                    nisa.dma_compute(dst=total, srcs=[total, row], reduce_op=nl.add)
        for begin, height, _, total in group:
            result = nl.ndarray((height, D), dtype=out_TD.dtype, buffer=nl.sbuf)
            nisa.tensor_copy(dst=result, src=total)
            nisa.dma_copy(dst=out_TD[begin : begin + height, :], src=result)


def expert_rows(w_EFD, expert, F, first, step):
    """[F, ...] of one expert: rows first, first + step, ... (step 2: gate and up interleaved, as GPT-OSS has them)."""
    return w_EFD[expert].slice(0, first, first + (F - 1) * step + 1, step)


def load_rows(source, e, first, spread, rows, begin, width, dtype):
    """A tile [P, rows / 128, width]: columns begin.. of rows first, first + spread, ... of source[e], e of run time.

    Row 128 k + p of them lies at [p, k]. source (E, ..., columns), or (E, rows) for columns of one.
    """
    columns = source.shape[2] if len(source.shape) > 2 else 1
    tile = nl.ndarray((P, tiles(rows), width), dtype=dtype, buffer=nl.sbuf)
    full = rows // P
    if full > 0:
        pattern, offset = [[spread * columns, P], [spread * P * columns, full], [1, width]], first * columns + begin
        nisa.dma_copy(
            dst=tile[:, 0:full, :], src=source.ap(pattern=pattern, offset=offset, scalar_offset=e, indirect_dim=0)
        )
    if rows % P > 0:
        pattern, offset = [[spread * columns, rows % P], [1, width]], (first + full * P * spread) * columns + begin
        place = source.ap(pattern=pattern, offset=offset, scalar_offset=e, indirect_dim=0)
        nisa.dma_copy(dst=tile[0 : rows % P, full, :], src=place)
    return tile


def load_transposed(dst_PkC, source, begin, size):
    """dst[p, k, c] = source[begin + c, 128 k + p]: columns on the partitions, by DMA transpose.

    All whole tiles of 128 columns in one transfer, so that each partition gets one long run; the rest in another.
    """
    width = source.shape[1]
    full = width // P
    if full > 0:
        whole = source[begin : begin + size, 0 : full * P].reshape_dim(1, (full, P))
        nisa.dma_transpose(dst=dst_PkC[:, 0:full, 0:size], src=whole, axes=(2, 1, 0))
    if width % P > 0:
        rest = source[begin : begin + size, full * P : width]
        nisa.dma_transpose(dst=dst_PkC[0 : width % P, full, 0:size], src=rest, axes=(1, 0))


def load_bias(bias, F, dtype):
    """A tile [P, F / 128] of float32 with bias[128 f + p], from a row of F numbers in HBM."""
    tile = nl.ndarray((P, tiles(F)), dtype=dtype, buffer=nl.sbuf)
    for f, at, height in parts(F, P):
        nisa.dma_copy(dst=tile[0:height, f : f + 1], src=bias[at : at + height].expand_dim(1))
    return tile
