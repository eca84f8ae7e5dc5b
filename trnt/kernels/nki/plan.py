"""How much of the state buffer the experts kernels take, bytes per partition: what stays, what streams, what fits.

Plain arithmetic, for the kernels themselves and for whoever launches them. Sizes: D hidden, F expert width, B rows of a
block, `size` bytes of an element; `usable` what one core lets a kernel hold (`hardware.Core.sbuf_usable`).
"""

from __future__ import annotations

P = 128
SLACK = 12288  # bytes of each partition left for small tiles: indices, affinities, biases
EMPTY = 2  # blocks behind the last: each asks for the numbers of the one after the next
MOST_TILES = 6  # of 128 tokens in a group of the backward: its code grows with the square of it


def tiles(length: int) -> int:
    """How many tiles of 128 hold `length`."""
    return (length + P - 1) // P


def forward_room(D: int, F: int, B: int, size: int, save: bool, usable: int) -> int:
    """Bytes left for weights beside one block's activations."""
    saved = 2 * tiles(F) * B * size if save else 0
    rows = (B // P + 2) * D * size  # of the next block, of one result, and the sum of 128 tokens
    return usable - SLACK - (rows + tiles(D) * B * size + tiles(F) * B * size + saved + 3 * 4 * B)


def backward_room(D: int, F: int, B: int, size: int, usable: int, ahead: bool = False) -> int:
    """Bytes left for weights and what a group keeps. ahead: beside two blocks' activations, one of them arriving."""
    arriving = (tiles(D) + 2 * tiles(F)) * B * size  # dy^T and the saved g and u
    block = arriving + 3 * tiles(F) * B * size + 16 * B + (D + max(D, F)) * size
    return usable - SLACK - max(2 * block if ahead else block + max(D, F) * size, D * (4 + size))


def backward_weights(D: int, F: int, size: int) -> int:
    """Bytes of one expert's weights as the backward holds them."""
    return (tiles(D) * F + 2 * tiles(F) * D) * size


def kept(D: int, F: int, B: int, size: int) -> int:
    """Bytes that a block leaves for its weight gradients: x, dy, a h, a dg and a du, tokens on the partitions."""
    return (2 * D + 3 * F) * size * (B // P)


def together(D: int, F: int, B: int, size: int, usable: int) -> int:
    """How many blocks of an expert the backward takes as one group, whose weight gradients are summed on chip."""
    room = backward_room(D, F, B, size, usable, True) - backward_weights(D, F, size)
    return max(1, min(MOST_TILES // (B // P), room // kept(D, F, B, size)))


def width_that_fits(room: int, per_column: int, step: int, length: int) -> int:
    """The most columns, a multiple of `step`, whose two copies (one in use, one arriving) fit `room` bytes."""
    if length * per_column <= room:
        return length
    return min(length, room // (2 * per_column) // step * step)


def dx_chunk(D: int, F: int, B: int, size: int, room: int) -> tuple[int, int]:
    """(columns, tiles of 128 rows) of w1 and w3 that come at a time for dx: four PSUM banks of it, twice in `room`.

    Wide before many: what lies together decides the DMA rate. No tiles: they do not fit.
    """
    columns = min(D, max(1, 4 // (B // P)) * 512)
    while columns > P and 4 * columns * size > room:
        columns = tiles(columns // 2) * P
    if 2 * tiles(F) * columns * size <= room:
        return columns, tiles(F)
    return columns, max(0, room // (4 * columns * size))


def forward_chunks(D: int, F: int, B: int, size: int, save: bool, usable: int) -> tuple[bool, bool, int, int]:
    """(whether an expert's weights stay, whether the next one's fit besides, columns of gate and up, and of down, at a
    time); no columns: they do not fit."""
    room = forward_room(D, F, B, size, save, usable)
    weights = (2 * tiles(D) * F + tiles(F) * D) * size
    if weights <= room:
        return True, 2 * weights <= room, F, D
    gate_up = width_that_fits(room, 2 * tiles(D) * size, P, F)
    return False, False, max(0, gate_up), max(0, width_that_fits(room, tiles(F) * size, P, D))


def backward_chunks(D: int, F: int, B: int, size: int, most: int, usable: int) -> tuple[bool, int, int, int]:
    """(whether an expert's weights stay, columns of down at a time, columns of gate and up, tiles of their rows); none:
    they do not fit. most: blocks of a group."""
    room = backward_room(D, F, B, size, usable) - most * kept(D, F, B, size)
    columns, held = dx_chunk(D, F, B, size, room)
    if backward_weights(D, F, size) <= room:
        return True, F, columns, tiles(F)
    return False, max(0, width_that_fits(room, tiles(D) * size, P, F)), columns, held


def tries(T: int, E: int, K: int) -> list[int]:
    """For each 128 tokens in the order of their last experts: the expert before which to add up their rows early.

    E: not before the end. Chosen for even routing, where C(e, K) of C(E, K) tokens need no expert from e on, half a
    tile of luck aside: one tile for an expert, whose own transfers leave room for no more, and four before each of the
    last two, for which no more weights have to come.
    """
    found: list[int] = []
    for e in range(1, E):
        share = 1.0
        for k in range(K):
            share = share * max(e - k, 0) / (E - k)
        ready = tiles(T) * share - 0.5
        for _ in range(3 if e == E - 1 else 1):
            if len(found) + 1 <= ready:
                found.append(e)
    return found + [E] * (tiles(T) - len(found))


def fits(D: int, F: int, B: int, size: int, usable: int) -> bool:
    """Whether both kernels have room for a chunk of weights beside the activations of blocks of B rows."""
    forward, backward = forward_chunks(D, F, B, size, True, usable), backward_chunks(D, F, B, size, 1, usable)
    return min(forward[2], forward[3], backward[1], backward[3]) > 0


def block_rows(D: int, F: int, size: int, usable: int) -> int:
    """How many rows a block should have.

    128 where both kernels hold an expert's weights: the least padding, and the tensor engine is full. Else the weights
    stream once per block and their gradients are added up in HBM: about as long as the products of 218 rows take in the
    forward and 327 in the backward (rates of trn2, `cost.RATES`), so 256 where they fit.
    """
    if backward_chunks(D, F, P, size, 1, usable)[0] and forward_chunks(D, F, P, size, True, usable)[0]:
        return P
    return 2 * P if fits(D, F, 2 * P, size, usable) else P
