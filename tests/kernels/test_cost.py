"""The cost model against counts made by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.kernels.nki.cases import Case, tensors
from trnt.kernels import cost, hardware
from trnt.kernels.nki.experts_backward import experts_backward
from trnt.kernels.nki.experts_forward import experts_forward
from trnt.kernels.nki.layout import arrange, grouped
from trnt.kernels.sim import isa as nisa
from trnt.kernels.sim import language as nl
from trnt.kernels.sim.machine import Issued
from trnt.kernels.sim.run import Kernel, Report

TRN2 = hardware.core("trn2")
RATES = cost.RATES["trn2"]


def report(function: Any, *args: Any) -> Report:
    kernel = Kernel(function)
    kernel(*args)
    assert kernel.report is not None
    return kernel.report


def ones(*shape: int, dtype: Any = ml_dtypes.bfloat16) -> np.ndarray:
    return np.ones(shape, dtype)


def chain(a, b):
    out = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    left = nl.ndarray((128, 128), dtype=a.dtype, buffer=nl.sbuf)
    right = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=left, src=a)
    nisa.dma_copy(dst=right, src=b)
    total = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
    for i in range(10):
        nisa.nc_matmul(dst=total, stationary=left, moving=right, accumulate=i > 0)
    result = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=result, src=total)
    nisa.dma_copy(dst=out, src=result)
    return out


@pytest.mark.parametrize(("dtype", "passes"), [(ml_dtypes.bfloat16, 1), (np.float32, 4)])
def test_a_chain_of_products(dtype: Any, passes: int) -> None:
    """128 x 128 x 512 takes 512 cycles of 2.4 GHz in bf16, 213 ns, and four times that in fp32 (nki.md, section 7)."""
    found = cost.schedule(report(chain, ones(128, 128, dtype=dtype), ones(128, 512, dtype=dtype)), TRN2, RATES)
    assert found.busy["tensor"] == pytest.approx(10 * passes * 512 / 2.4)
    assert found.busy["vector"] == pytest.approx(512 / 0.96)  # out of PSUM in fp32: no faster mode
    size = np.dtype(dtype).itemsize
    assert found.bytes == 128 * (128 + 512) * size + 128 * 512 * 4
    # nothing overlaps: loads one after another, then products, then the copy, then the store
    left, right, out = 128 * 128 * size, 128 * 512 * size, 128 * 512 * 4
    loads = left / (368 * cost.share(128 * size)) + right / min(362.5, 368 * cost.share(512 * size))
    store = out / (368 * cost.share(2048))
    alone = loads + 10 * passes * 512 / 2.4 + 512 / 0.96 + store
    assert found.ns == pytest.approx(alone + 2 * RATES.start_ns)


def test_a_transpose_and_a_gather() -> None:
    def turn(x, index):
        out = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.shared_hbm)
        where = nl.ndarray((128, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=where, src=index)
        rows = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=rows, src=x.ap(pattern=[[128, 128], [1, 128]], vector_offset=where, indirect_dim=0))
        turned = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.psum)
        nisa.nc_transpose(dst=turned, data=rows)
        back = nl.ndarray((128, 128), dtype=x.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=back, src=turned)
        nisa.dma_copy(dst=out, src=back)
        return out

    index = np.arange(128, dtype=np.int32)[::-1].reshape(128, 1).copy()
    seen = report(turn, ones(300, 128), index)
    assert Counter(one.name for one in seen.issued) == {"dma_copy": 3, "nc_transpose": 1, "tensor_copy": 1}
    found = cost.schedule(seen, TRN2, RATES)
    assert found.busy["tensor"] == pytest.approx(128 / 2.4)
    assert found.busy["vector"] == pytest.approx(64 / 0.96)  # bf16 out of PSUM: twice the rate, 64 cycles
    assert found.busy["gpsimd"] == RATES.gather_ns
    assert found.bytes == 128 * 4 + 2 * 128 * 128 * 2


def test_shares_of_the_dma_rate() -> None:
    """The figure's own points (nki.md, section 7), within the 1 % it can be read to and a little: 42 % for 1 KiB."""
    for run, part in {256: 0.10, 512: 0.21, 1024: 0.42, 2048: 0.81, 4096: 0.97, 8192: 0.98, 32768: 1.0}.items():
        assert cost.share(run) == pytest.approx(part, abs=0.02)
    assert cost.share(1 << 20) == 1.0
    with_eight = Issued("dma_copy", "dma", 64, 1, 1 << 20, "bfloat16", run=32768)
    assert cost.nanoseconds(with_eight, RATES) == pytest.approx((1 << 20) / (368 / 2))


def load_and_multiply(x):
    out = nl.ndarray((8, 128, 512), dtype=nl.float32, buffer=nl.shared_hbm)
    for i in range(8):
        tile = nl.ndarray((128, 4096), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[i])
        total = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum)
        for j in range(8):
            nisa.nc_matmul(
                dst=total, stationary=tile[:, 0:128], moving=tile[:, j * 512 : (j + 1) * 512], accumulate=j > 0
            )
        result = nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=result, src=total)
        nisa.dma_copy(dst=out[i], src=result)
    return out


def test_the_published_time_of_one_queue_s_transfer() -> None:
    """32 KiB by one of the 16 DMA engines: 1,416 ns (nki-dma-overview); the table's 23 B/ns is rounded."""
    one = Issued("dma_copy", "dma", rows=8, columns=4096, moved=32768, dtype="uint8", run=32768)
    assert cost.nanoseconds(one, RATES) == pytest.approx(1416, rel=0.01)


def test_loads_go_on_while_products_run_but_only_where_there_is_room() -> None:
    seen = report(load_and_multiply, ones(8, 128, 4096))
    free = cost.schedule(seen, TRN2, RATES)
    assert free.bound == "dma"
    assert free.ns < sum(free.busy.values())
    assert free.ns > max(free.busy.values())
    # 8,192 and 2,048 bytes a partition: room for one of each makes every trip wait for the one before
    tight = hardware.Core("tight", 3, 10240, 10240)
    alone = cost.schedule(seen, tight, RATES)
    assert alone.ns > 1.3 * free.ns
    assert alone.busy == free.busy


def test_rows_by_index_are_fetched_in_gpsimd_s_order_not_in_the_loads() -> None:
    """A load that waits for what a chain of products stores does not hold up a gather behind it."""

    def waiting(x, index, gathers):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        where = nl.ndarray((128, 1), dtype=nl.int32, buffer=nl.sbuf)
        nisa.dma_copy(dst=where, src=index)
        first = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=first, src=x[0:128, :])
        for _ in range(40):
            nisa.activation(dst=first, op=nl.copy, data=first)
        nisa.dma_copy(dst=out, src=first)
        back = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=back, src=out)
        rows = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        picked = x.ap(pattern=[[512, 128], [1, 512]], vector_offset=where, indirect_dim=0)
        nisa.dma_copy(dst=rows, src=picked if gathers else x[0:128, :])
        for _ in range(40):
            nisa.tensor_copy(dst=rows, src=rows)
        other = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=other, src=rows)
        return out, other

    index = np.arange(128, dtype=np.int32).reshape(128, 1)
    scalar, vector = 40 * 512 / 1.2, 40 * 512 / 4 / 0.96
    for gathers, slower in ((True, False), (False, True)):
        found = cost.schedule(report(waiting, ones(128, 512), index, gathers), TRN2, RATES)
        assert (found.ns > scalar + vector + 5 * RATES.start_ns) == slower


def test_a_transfer_that_adds_reads_every_source() -> None:
    def added(x):
        out = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        sums = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_compute(dst=sums, srcs=[x[i] for i in range(8)], reduce_op=nl.add)
        nisa.dma_copy(dst=out, src=sums)
        return out

    assert cost.schedule(report(added, ones(8, 128, 512)), TRN2, RATES).bytes == 9 * 128 * 512 * 2


def test_walls_around_trips() -> None:
    def looped(x, count):
        out = nl.ndarray((8, 128, 512), dtype=x.dtype, buffer=nl.shared_hbm)
        end = nisa.register_alloc()
        nisa.register_load(end, count[0:1, 0])

        def body(i):
            tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
            place = [[512, 128], [1, 512]]
            nisa.dma_copy(dst=tile, src=x.ap(pattern=place, scalar_offset=i, indirect_dim=0))
            nisa.dma_copy(dst=out.ap(pattern=place, scalar_offset=i, indirect_dim=0), src=tile)

        nl.fori_loop(0, end, body)
        return out

    seen = report(looped, ones(8, 128, 512), np.array([[8]], np.int32))
    assert len(seen.trips) == 9
    free, walled = (cost.schedule(seen, TRN2, RATES, walls=walls) for walls in (False, True))
    assert walled.ns > free.ns + 7 * RATES.start_ns


def test_transfers_share_one_bandwidth_in_pieces() -> None:
    line = cost.Bandwidth()
    assert line.take(10, 5) == 15
    assert line.take(0, 12) == 17  # 0 to 10, then on after the other
    assert line.take(0, 1) == 18


def test_who_wants_in_waits_for_those_who_leave_first() -> None:
    room = cost.Room(100)
    assert room.enter(60) == 0
    assert room.enter(40) == 0
    room.leave(40, 7.0)
    room.leave(60, 9.0)
    assert room.enter(30) == 7.0
    assert room.enter(60) == 9.0


def forward(case: Case) -> Report:
    x, scores, ids, w1, w2, w3, *_ = tensors(case)
    experts_forward(x, *arrange(scores, ids, case.E, case.B).operands, w1, w2, w3)
    return experts_forward.report


def test_a_block_of_qwen3_s_experts_takes_what_the_arithmetic_says() -> None:
    """36,864 cycles of products, 15.36 us, and 16 transposes of 128 (nki.md, sections 5.2 and 6), twice: a block also
    transposes the next one's rows, here those of the empty block behind the last."""
    found = cost.schedule(forward(Case(128, 2048, 768, 1, 1, dtype=torch.bfloat16)), TRN2, RATES)
    assert found.busy["tensor"] == pytest.approx((36864 + 2 * 16 * 128) / 2.4)


def test_the_next_expert_s_weights_come_while_this_one_computes() -> None:
    """The second pair of experts costs less than the products and the loads of two one after another."""
    two, four = (cost.schedule(forward(Case(128, 2048, 768, n, n, dtype=torch.bfloat16)), TRN2, RATES) for n in (2, 4))
    more = {name: four.busy[name] - two.busy[name] for name in ("tensor", "dma")}
    assert max(more.values()) <= four.ns - two.ns < sum(more.values())


def test_tokens_are_added_up_while_experts_compute() -> None:
    """Told that nothing is done early, the kernel adds up all at the end: the same numbers, later."""
    case = Case(1024, 512, 512, 16, 2, dtype=torch.bfloat16)
    x, scores, ids, w1, w2, w3, *_ = tensors(case)
    layout = arrange(scores, ids, case.E, case.B)
    assert layout.done_J1.any()
    late = layout._replace(done_J1=torch.zeros_like(layout.done_J1))
    outs, times = [], []
    for one in (layout, late):
        outs.append(experts_forward(x, *one.operands, w1, w2, w3)[0])
        times.append(cost.schedule(experts_forward.report, TRN2, RATES))
    assert torch.equal(*outs)
    assert times[0].bytes == times[1].bytes
    assert times[0].ns < times[1].ns


def test_the_backward_writes_a_group_s_weight_gradients_once() -> None:
    """Two blocks in one group: gradients leave once. Block by block they are read and written once more."""
    case = Case(256, 256, 256, 1, 1, dtype=torch.bfloat16)
    x, scores, ids, w1, w2, w3, _, _, _, dout = tensors(case)
    layout = arrange(scores, ids, case.E, case.B)
    _, saved = experts_forward(x, *layout.operands, w1, w2, w3)
    found = []
    for most in (1, 2):
        experts_backward(dout, x, *grouped(layout, most), saved, w1, w2, w3)
        found.append(cost.schedule(experts_backward.report, TRN2, RATES))
    weights = 3 * 256 * 256
    again = 2 * weights * 2 + weights * 2 + 2 * 4  # the gradients both ways, the weights, and which group it is
    assert found[0].bytes - found[1].bytes == again
    assert found[1].ns < found[0].ns


@pytest.mark.parametrize("name", cost.RATES)
def test_every_generation_has_a_range(name: str) -> None:
    found = cost.predict(report(chain, ones(128, 128), ones(128, 512)), name)
    assert 0 < found.fastest <= found.expected.ns <= found.slowest


def test_the_roofline_of_qwen3_s_experts() -> None:
    """0.309 TFLOP at 79 TFLOP/s: 3.91 ms; twice that backward (nki.md, section 6). E 128: weights 3.33 ms."""
    flops = 6.0 * 4096 * 8 * 2048 * 768
    assert cost.ideal(flops, 872e6, "trn2") == (pytest.approx(3.91e6, rel=2e-3), "products")
    assert cost.ideal(0, 3 * 128 * 2048 * 768 * 2, "trn2") == (pytest.approx(3.33e6, rel=2e-3), "memory")
