"""Every rule of the interpreter's table, broken by a kernel of a few lines; the refusal names the line and the rule."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trnt.kernels import sim
from trnt.kernels.sim import isa as nisa
from trnt.kernels.sim import language as nl
from trnt.kernels.sim.refusal import RULES

CASES: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = []
ROWS = np.arange(256 * 64, dtype=np.float32).reshape(256, 64)


def breaks(rule: str, *args: Any) -> Callable[[Any], Any]:
    def keep(function: Any) -> Any:
        CASES.append((rule, function, args))
        return function

    return keep


def tile(rows: int = 128, columns: int = 64, dtype: str = "float32", buffer: str = "sbuf"):
    made = nl.ndarray((rows, columns), dtype=dtype, buffer=buffer)
    nisa.memset(dst=made, value=0)
    return made


@breaks("partitions")
def too_many_partitions():
    nl.ndarray((129, 4), dtype=nl.float32)


@breaks("start_partition")
def begins_at_partition_8():
    nisa.memset(dst=tile()[8:16, :], value=0.0)


@breaks("start_partition")
def forty_partitions_at_32():
    nisa.memset(dst=tile()[32:72, :], value=0.0)


@breaks("free_dims")
def five_free_dimensions():
    wide = nl.ndarray((2, 3, 3, 3, 3, 3), dtype=nl.float32)
    nisa.memset(dst=wide[:, 0:2, 0:2, 0:2, 0:2, 0:2], value=0.0)


@breaks("stationary")
def wide_stationary():
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=out, stationary=tile(columns=129), moving=tile())


@breaks("moving")
def wide_moving():
    out = nl.ndarray((64, 513), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=out, stationary=tile(), moving=tile(columns=513))


@breaks("contraction")
def unequal_contraction():
    out = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=out, stationary=tile(rows=64), moving=tile())


@breaks("transpose_size")
def wide_transpose():
    nisa.nc_transpose(dst=nl.ndarray((128, 128), dtype=nl.float32, buffer=nl.psum), data=tile(columns=129))


@breaks("transpose_size")
def vector_transpose_of_64():
    out = nl.ndarray((64, 32), dtype=nl.float32)
    nisa.nc_transpose(dst=out, data=tile(rows=32, columns=64), engine=nisa.engine.vector)


@breaks("bank")
def output_over_two_banks():
    out = nl.ndarray((64, 1024), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=out[:, 400:600], stationary=tile(), moving=tile(columns=200))


@breaks("banks")
def nine_banks():
    banks = []
    for _ in range(9):
        banks.append(tile(columns=512, buffer=nl.psum))
    for bank in banks:
        nisa.tensor_copy(dst=nl.ndarray((128, 512), dtype=nl.float32), src=bank)


@breaks("sbuf")
def one_tensor_too_large():
    nl.ndarray((128, 60_000), dtype=nl.float32)


@breaks("sbuf")
def two_alive_too_large():
    a, b = tile(columns=30_000), tile(columns=30_000)
    nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)


@breaks("memory")
def matmul_into_sbuf():
    nisa.nc_matmul(dst=tile(rows=64), stationary=tile(), moving=tile())


@breaks("memory")
def dma_out_of_psum():
    nisa.dma_copy(dst=nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm), src=tile(buffer=nl.psum))


@breaks("memory")
def gpsimd_reads_psum():
    nisa.tensor_copy(dst=tile(), src=tile(buffer=nl.psum), engine=nisa.engine.gpsimd)


@breaks("memory", ROWS)
def engine_reads_hbm(rows):
    nisa.tensor_copy(dst=tile(), src=rows[0:128, :])


@breaks("two_psum")
def both_inputs_in_psum():
    nisa.tensor_tensor(dst=tile(), data1=tile(buffer=nl.psum), data2=tile(buffer=nl.psum), op=nl.add)


@breaks("engine")
def power_on_vector():
    nisa.tensor_tensor(dst=tile(), data1=tile(), data2=tile(), op=nl.power, engine=nisa.engine.vector)


@breaks("engine")
def maximum_on_scalar():
    nisa.tensor_scalar(dst=tile(), data=tile(), op0=nl.maximum, operand0=1.0, engine=nisa.engine.scalar)


@breaks("dtype")
def matmul_of_integers():
    out = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=out, stationary=tile(dtype=nl.int32), moving=tile())


@breaks("dtype")
def float_into_integers():
    nisa.memset(dst=nl.ndarray((4, 4), dtype=nl.int32), value=1.5)


@breaks("dtype")
def fp32_with_bf16():
    out = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=out, stationary=tile(), moving=tile(dtype=nl.bfloat16))


@breaks("accumulate")
def onto_a_memset():
    out = tile(rows=64, buffer=nl.psum)
    nisa.nc_matmul(dst=out, stationary=tile(), moving=tile(), accumulate=True)


@breaks("accumulate")
def onto_nothing():
    out = nl.ndarray((64, 64), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=out, stationary=tile(), moving=tile(), accumulate=True)


@breaks("unwritten")
def reads_what_was_never_written():
    nisa.tensor_copy(dst=tile(), src=nl.ndarray((128, 64), dtype=nl.float32))


@breaks("unwritten")
def reads_one_column_too_many():
    half = nl.ndarray((128, 64), dtype=nl.int32)
    nisa.memset(dst=half[:, 0:63], value=0)
    nisa.tensor_copy(dst=tile(dtype=nl.int32), src=half)


@breaks("unwritten")
def reads_under_another_tensor():
    below = nl.ndarray((128, 64), dtype=nl.float32, address=(0, 0))
    nisa.memset(dst=below, value=0.0)
    nisa.memset(dst=nl.ndarray((128, 64), dtype=nl.float32, address=(0, 128)), value=0.0)
    nisa.tensor_copy(dst=tile(), src=below)


@breaks("outside", ROWS)
def slice_beyond_the_end(rows):
    nisa.dma_copy(dst=tile(), src=rows[200:328, :])


@breaks("outside", ROWS, np.array([[0], [256]], np.int32))
def gathers_a_row_that_is_not_there(rows, ids):
    index = nl.load(ids)
    nisa.dma_copy(dst=tile(rows=2), src=rows.ap([[64, 2], [1, 64]], vector_offset=index))


@breaks("outside", ROWS)
def pattern_beyond_the_end(rows):
    nisa.dma_copy(dst=tile(), src=rows.ap([[128, 128], [1, 64]], offset=129))


@breaks("shape")
def unequal_tiles():
    nisa.tensor_tensor(dst=tile(), data1=tile(), data2=tile(columns=32), op=nl.add)


@breaks("shape")
def permutes_the_partition():
    tile().permute((1, 0))


@breaks("two_writers", ROWS)
def writes_a_row_twice(rows):
    out = nl.ndarray((128, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=rows[0:128, :])
    nisa.dma_copy(dst=out[5:6, :], src=rows[128:129, :])


@breaks("two_writers", ROWS, np.array([[3], [4]], np.int32), np.array([[5], [4]], np.int32))
def scatters_to_a_row_twice(rows, first, second):
    out = nl.ndarray((8, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    two = nl.load(rows[0:2, :])
    nisa.dma_copy(dst=out.ap([[64, 2], [1, 64]], vector_offset=nl.load(first)), src=two)
    nisa.dma_copy(dst=out.ap([[64, 2], [1, 64]], vector_offset=nl.load(second)), src=two)


@breaks("duplicates", ROWS, np.array([[3], [3]], np.int32))
def adds_to_a_row_twice_at_once(rows, ids):
    out = nl.ndarray((8, 64), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=rows[0:8, :])
    picked = out.ap([[64, 2], [1, 64]], vector_offset=nl.load(ids))
    nisa.dma_compute(dst=picked, srcs=[picked, nl.load(rows[0:2, :])], reduce_op=nl.add)


@breaks("output")
def returns_a_tile():
    return tile()


@breaks("dynamic", np.array([3], np.int32))
def adds_to_a_register(number):
    count = nisa.register_alloc()
    nisa.register_load(count, number)
    return count + 1


@breaks("dynamic", np.array([3], np.int32))
def a_shape_from_data(number):
    count = nisa.register_alloc()
    nisa.register_load(count, number)
    nl.ndarray((128, count), dtype=nl.float32)


@breaks("dynamic", np.array([3], np.int32))
def a_python_loop_over_a_register(number):
    count = nisa.register_alloc()
    nisa.register_load(count, number)
    for _ in range(count):
        tile()


@breaks("dynamic")
def compares_the_loop_index():
    def body(i):
        if i == 0:
            tile()

    nl.fori_loop(0, 2, body)


@breaks("escape")
def uses_a_tile_of_the_body_after_the_loop():
    kept = []

    def body(i):
        kept.append(tile())

    nl.fori_loop(0, 1, body)
    nisa.tensor_copy(dst=tile(), src=kept[0])


@breaks("order")
def each_trip_reads_the_last():
    total = nl.ndarray((1, 4), dtype=nl.float32)
    nisa.memset(dst=total, value=1.0)
    for i in nl.affine_range(3):
        nisa.tensor_scalar(dst=total, data=total, op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=float(i))
    out = nl.ndarray((1, 4), dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=total)
    return out


@breaks("dma", ROWS)
def unequal_counts(rows):
    nisa.dma_copy(dst=tile(), src=rows[0:64, :])


@breaks("dma", ROWS)
def hardware_descriptors_cast(rows):
    half = nl.ndarray((128, 64), dtype=nl.bfloat16)
    nisa.dma_copy(dst=half, src=rows[0:128, :], dge_mode=nisa.dge_mode.hwdge)


@breaks("language")
def uses_is(x=None):
    return None if x is None else x


@breaks("language")
def uses_try():
    try:
        tile()
    except ValueError:
        tile()


@breaks("language")
def takes_stars(*tiles):
    return tiles


@breaks("language")
def makes_text():
    word = f"{nl.tile_size.pmax}"
    tile(dtype=word)


@breaks("supported")
def an_instruction_without_interpretation():
    nisa.bn_stats(dst=tile(), data=tile())


@breaks("supported")
def a_division():
    nisa.tensor_tensor(dst=tile(), data1=tile(), data2=tile(), op=nl.divide)


@breaks("supported")
def an_argument_that_does_not_exist():
    nisa.tensor_copy(dst=tile(), src=tile(), mask=True)


@breaks("lnc")
def a_barrier():
    nisa.core_barrier(data=tile(), cores=(0, 1))


@pytest.mark.parametrize(("rule", "kernel", "args"), CASES, ids=[f"{r}-{k.__name__}" for r, k, _ in CASES])
def test_the_rule_is_kept(rule: str, kernel: Any, args: tuple[Any, ...]) -> None:
    run = sim.order_independent if rule == "order" else lambda kernel, *args: kernel(*args)
    with pytest.raises(sim.Refused) as caught:
        run(sim.jit(kernel), *args)
    assert caught.value.rule == rule
    assert RULES[rule] in caught.value.fix
    if rule not in ("output", "order"):
        named, number = re.match(r"(\S+):(\d+): ", caught.value.cause).groups()  # type: ignore[union-attr]
        assert named == "test_refusal.py"
        assert 0 < int(number) < 500


def test_every_rule_has_a_kernel_that_breaks_it() -> None:
    assert {rule for rule, _, _ in CASES} == set(RULES)


def test_the_line_and_the_instruction_are_the_kernel_s() -> None:
    with pytest.raises(sim.Refused) as caught:
        sim.simulate(both_inputs_in_psum)()
    first = both_inputs_in_psum.__code__.co_firstlineno
    assert caught.value.cause == f"test_refusal.py:{first + 2}: tensor_tensor: both inputs are in PSUM"


def test_outside_of_a_kernel_nothing_runs() -> None:
    with pytest.raises(sim.Refused, match="outside of a kernel"):
        tile()


def test_the_page_lists_every_rule() -> None:
    page = (Path(__file__).parents[3] / "docs" / "kernels.md").read_text()
    for rule, meaning in RULES.items():
        assert f"| {rule} | {meaning} |" in page
