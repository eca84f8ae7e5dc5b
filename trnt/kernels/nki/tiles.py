"""What the kernels share: sizes, gathers, transposes, and adding up the rows of a token. Plain functions, inlined.

P = 128 partitions. An expert's tokens come in blocks of B = 128, 256 or 512 rows; rows beyond an expert's last token
are padding, whose token number is T: their gather is skipped and leaves zeros.
"""

from __future__ import annotations

from trnt.kernels.nki.api import nisa, nl
from trnt.kernels.nki.plan import P, tiles

COLUMNS = 512  # fp32 columns of one PSUM bank, and the widest moving operand


def check_launch(B, top_k):
    """What both experts kernels ask of their blocks, of the choices and of the launch grid."""
    assert B in (128, 256, 512), "blocks are of 128, 256 or 512 rows"
    assert top_k <= 16, "one transfer adds up at most 16 rows of a token, and top_k is more"
    assert nl.num_programs() == 1, "one physical core: set NEURON_LOGICAL_NC_CONFIG=1"


def parts(length, step):
    """[(number, first, size), ...]: `length` in steps, the last one shorter."""
    found = []
    for first in range(0, length, step):
        found.append((first // step, first, min(step, length - first)))
    return found


def gather_rows(x_TD, ids_P1, dtype):
    """A tile [rows, D] with the rows of x that ids name; zeros where the id is T."""
    height, D = ids_P1.shape[0], x_TD.shape[1]
    rows = nl.ndarray((height, D), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=rows, value=0.0, engine=nisa.engine.gpsimd)
    picked = x_TD.ap(pattern=[[D, height], [1, D]], vector_offset=ids_P1, indirect_dim=0)
    nisa.dma_copy(dst=rows, src=picked, oob_mode=nisa.oob_mode.skip)
    return rows


def load_column(dst, source_NBw, block, tile):
    """dst [128, w] = the entries of a block's rows from 128 `tile` on; beyond its own are those of the next block."""
    width = source_NBw.shape[2]
    pattern, offset = [[width, P], [1, width]], tile * P * width
    nisa.dma_copy(dst=dst, src=source_NBw.ap(pattern=pattern, offset=offset, scalar_offset=block, indirect_dim=0))


def put_rows(rows_RD, places_P1, begin, tile):
    """Columns begin.. of the rows of the scratch that places name = the tile; none where the place is R."""
    height, width = tile.shape
    pattern = [[rows_RD.shape[1], height], [1, width]]
    there = rows_RD.ap(pattern=pattern, offset=begin, vector_offset=places_P1, indirect_dim=0)
    nisa.dma_copy(dst=there, src=tile, oob_mode=nisa.oob_mode.skip)


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


def load_tokens(token_PJ):
    """All of the tokens' numbers, in the order in which their rows lie in the scratch."""
    tokens = nl.ndarray(token_PJ.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=tokens, src=token_PJ)
    return tokens


def add_up(sums, rows_RD, j, top_k):
    """sums = of each of 128 tokens the sum of its K rows of the scratch, in fp32: one transfer, no two writers."""
    height, D = sums.shape
    rows = []
    for k in range(top_k):
        rows.append(rows_RD.ap(pattern=[[top_k * D, height], [1, D]], offset=(j * P * top_k + k) * D))
    nisa.dma_compute(dst=sums, srcs=rows, reduce_op=nl.add)


def put_sums(out_TD, tokens_PJ, j, sums):
    """The rows of out that belong to the 128 tokens of j = sums."""
    height, D = sums.shape
    there = out_TD.ap(pattern=[[D, height], [1, D]], vector_offset=tokens_PJ[0:height, j : j + 1], indirect_dim=0)
    nisa.dma_copy(dst=there, src=sums)


def combine(out_TD, rows_RD, tokens_PJ, j, top_k):
    """out[t] of the 128 tokens of j."""
    T, D = out_TD.shape
    sums = nl.ndarray((min(P, T - j * P), D), dtype=out_TD.dtype, buffer=nl.sbuf)
    add_up(sums, rows_RD, j, top_k)
    put_sums(out_TD, tokens_PJ, j, sums)


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
