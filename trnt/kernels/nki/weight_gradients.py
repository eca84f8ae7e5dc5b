"""The experts' weight gradients: products over the tokens of a group, summed in PSUM. Plain functions, inlined.

lefts and rights: a tile [P tokens, ...] for each 128 tokens of the group. `adding`: to what lies in HBM already, in the
target's dtype.
"""

from __future__ import annotations

from trnt.kernels.nki.api import nisa, nl
from trnt.kernels.nki.plan import P
from trnt.kernels.nki.tiles import COLUMNS, parts


def strip(place, lefts, rights, first, height, columns, adding):
    """place [height, columns] = the sum over tiles of left^T right, left's columns from `first` on."""
    row = nl.ndarray((height, columns), dtype=place.dtype, buffer=nl.sbuf)
    if adding:
        nisa.dma_copy(dst=row, src=place)
    for k, c, n in parts(columns, COLUMNS):
        sums = nl.ndarray((height, n), dtype=nl.float32, buffer=nl.psum)
        for t in range(len(lefts)):
            nisa.nc_matmul(
                dst=sums,
                stationary=lefts[t][:, first : first + height],
                moving=rights[t][:, c : c + n],
                accumulate=t > 0,
            )
        if adding:
            nisa.tensor_tensor(dst=row[:, c : c + n], data1=sums, data2=row[:, c : c + n], op=nl.add)
        elif k % 2 > 0:  # the two engines take turns
            nisa.activation(dst=row[:, c : c + n], op=nl.copy, data=sums)
        else:
            nisa.tensor_copy(dst=row[:, c : c + n], src=sums)
    nisa.dma_copy(dst=place, src=row)


def of_weights(target, e, spread, begin, lefts, rights, rows, adding):
    """Rows begin, begin + spread, ... of target[e] (E, ..., columns), `rows` of them."""
    columns = target.shape[2]
    for _, at, height in parts(rows, P):
        pattern, offset = [[spread * columns, height], [1, columns]], (at * spread + begin) * columns
        place = target.ap(pattern=pattern, offset=offset, scalar_offset=e, indirect_dim=0)
        strip(place, lefts, rights, at, height, columns, adding)


def of_biases(target, e, spread, begin, lefts, rights, columns, adding):
    """Entries begin, begin + spread, ... of target[e] (E, ...), `columns` of them; lefts [P, 1]."""
    pattern = [[target.shape[1], 1], [spread, columns]]
    place = target.ap(pattern=pattern, offset=begin, scalar_offset=e, indirect_dim=0)
    strip(place, lefts, rights, 0, 1, columns, adding)
