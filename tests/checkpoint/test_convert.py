"""The engine: what is written is right to the bit, and no kill, full disk or refusal costs anything."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trnt.checkpoint import convert, layout, manifest, written
from trnt.checkpoint.hf import open_hf
from trnt.checkpoint.layout import Part, Target
from trnt.errors import TrntError

Folder = dict[str, bytes]


def contents(folder: Path) -> Folder:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    torch.manual_seed(0)
    save_file({f"t{i}": torch.randn(50, 7 + i) for i in range(12)}, folder / "model.safetensors")
    return folder


def write(
    source: Path,
    target: Path,
    *,
    dtype: str = "F32",
    limit: int = 4000,
    kind: str = "hf",
    head: str = "x",
    **options: Any,
) -> Any:
    with open_hf(source) as opened:
        wanted = [Target(n, dtype, i.shape, (Part(n, 0, i.numel),)) for n, i in opened.tensors.items()]
        made = layout.hf_layout(wanted, limit) if kind == "hf" else layout.dcp_layout(wanted, limit)
        return convert.write_folder(
            opened, made, target, {"fingerprint": head}, convert.Options(**options), assets=lambda folder: None
        )


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        found |= load_file(file)
    return found


@pytest.mark.parametrize("piece", [1 << 10, 8 << 20])
def test_every_bit_arrives_whatever_the_piece(
    source: Path, tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch, same_bits: Callable[..., bool]
) -> None:
    monkeypatch.setattr(convert.Work, "piece", piece)
    records = write(source, tmp_path / "out")
    assert same_bits(loaded(tmp_path / "out"), loaded(source))
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    assert {record.tensor for record in records} == set(loaded(source))
    assert all(record.sha256 == record.source_sha256 for record in records)
    assert not list(tmp_path.glob(".out*"))


def test_a_cast_is_torch_s_and_both_checksums_are_kept(
    source: Path, tmp_path: Path, same_bits: Callable[..., bool]
) -> None:
    records = write(source, tmp_path / "out", dtype="BF16")
    assert same_bits(loaded(tmp_path / "out"), {name: t.bfloat16() for name, t in loaded(source).items()})
    assert all(record.sha256 != record.source_sha256 for record in records)


def test_values_that_are_not_finite_are_counted_or_refused(tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    bad = torch.ones(100)
    bad[3], bad[50] = float("nan"), float("-inf")
    save_file({"bad": bad, "large": torch.full((100,), 3e38), "good": torch.ones(3)}, folder / "model.safetensors")
    records = write(folder, tmp_path / "out")
    # the sum of `large` overflows, and none of its values is infinite
    assert {record.tensor: record.not_finite for record in records} == {"bad": 2, "large": 0, "good": 0}
    with pytest.raises(convert.NotFinite, match="bad holds NaN"):
        write(folder, tmp_path / "other", refuse_not_finite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "source"]


def fail_after(monkeypatch: pytest.MonkeyPatch, count: int, number: int) -> None:
    """The disk refuses after `count` writes."""
    left = [count]
    real = os.pwrite

    def pwrite(handle: int, data: Any, offset: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(number, os.strerror(number))
        return real(handle, data, offset)

    monkeypatch.setattr(written.os, "pwrite", pwrite)


def test_a_full_disk_is_one_line_and_the_same_call_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source, tmp_path / "whole")
    with monkeypatch.context() as patch:
        fail_after(patch, 12, errno.ENOSPC)
        with pytest.raises(TrntError, match=r"no space left.*\d+ of 12 parts are done and kept"):
            write(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    kept = manifest.read(tmp_path / ".out.partial" / manifest.NAME)[1]
    assert 0 < len(kept) < 12
    write(source, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_too_little_room_is_said_before_the_first_byte(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.disk_usage
    monkeypatch.setattr(convert.shutil, "disk_usage", lambda path: real(path)._replace(free=100))
    with pytest.raises(TrntError, match="are needed, 100 B are free"):
        write(source, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_done_parts_are_not_written_again_but_damaged_ones_are(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(source, tmp_path / "whole")
    with monkeypatch.context() as patch:
        fail_after(patch, 20, errno.EIO)
        with pytest.raises(TrntError, match=r"Input/output error; \d+ of 12 parts are done and kept"):
            write(source, tmp_path / "out")
    done = manifest.read(tmp_path / ".out.partial" / manifest.NAME)[1]
    file = tmp_path / ".out.partial" / done[0].file
    data = bytearray(file.read_bytes())
    data[done[0].offset] ^= 1  # as after a power failure
    file.write_bytes(data)
    written: list[str] = []
    real = manifest.Manifest.add
    monkeypatch.setattr(
        manifest.Manifest, "add", lambda self, record: (written.append(record.tensor), real(self, record))
    )
    write(source, tmp_path / "out")
    assert len(written) == 12 - len(done) + 1
    assert done[0].tensor in written
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_partial_folder_of_something_else_is_begun_anew(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_after(patch, 20, errno.EIO)
        with pytest.raises(TrntError):
            write(source, tmp_path / "out", head="one")
    write(source, tmp_path / "out", head="two", limit=10**9)
    assert [p.name for p in (tmp_path / "out").glob("*.safetensors")] == ["model.safetensors"]


def test_a_record_of_another_place_is_not_taken_up(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same conversion by name, laid out differently: nothing counts as done where it does not belong."""
    write(source, tmp_path / "whole", limit=10**9)
    with monkeypatch.context() as patch:
        fail_after(patch, 20, errno.EIO)
        with pytest.raises(TrntError):
            write(source, tmp_path / "out")
    write(source, tmp_path / "out", limit=10**9)
    name = "model.safetensors"
    assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_folder_that_happens_to_have_the_partial_s_name_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "precious").write_text("x")
    with pytest.raises(TrntError, match="not a conversion's"):
        write(source, tmp_path / "out")
    assert (tmp_path / ".out.partial" / "precious").read_text() == "x"


def test_an_old_folder_stays_until_the_new_one_is_whole(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with monkeypatch.context() as patch:
        fail_after(patch, 12, errno.ENOSPC)
        with pytest.raises(TrntError):
            write(source, tmp_path / "out")
    assert contents(tmp_path / "out") == {"precious": b"x"}
    write(source, tmp_path / "out")
    assert not (tmp_path / "out" / "precious").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "source"]


KILLED = """
import sys, time
from pathlib import Path
from trnt.checkpoint import convert
sys.path.insert(0, {tests!r})
from tests.checkpoint.test_convert import write
real = convert.write_at
def slow(*words):
    time.sleep(0.004)
    real(*words)
convert.write_at = slow
write(Path({source!r}), Path({target!r}), kind={kind!r})
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hf", "dcp"])
def test_killed_at_any_moment_it_ends_with_the_same_bytes(source: Path, tmp_path: Path, kind: str) -> None:
    """SIGKILL at ten random moments for each kind, every one followed by the same call."""
    root = Path(__file__).parents[2]
    write(source, tmp_path / "whole", kind=kind)
    rng = random.Random(0)
    code = KILLED.format(tests=str(root), source=str(source), target=str(tmp_path / "out"), kind=kind)
    killed = 0
    for _ in range(10):
        process = subprocess.Popen([sys.executable, "-c", code], cwd=root)
        partial = tmp_path / ".out.partial" / manifest.NAME
        deadline = time.monotonic() + 60
        before = partial.stat().st_size if partial.exists() else 0
        while process.poll() is None and time.monotonic() < deadline:
            if partial.exists() and partial.stat().st_size != before:
                break
            time.sleep(0.002)
        time.sleep(rng.random() * 0.03)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.wait()
        if (tmp_path / "out").exists():
            assert contents(tmp_path / "out") == contents(tmp_path / "whole")
            shutil.rmtree(tmp_path / "out")
    write(source, tmp_path / "out", kind=kind)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert killed >= 5


BOUNDED = """
import sys
from pathlib import Path
from tests.checkpoint.test_convert import write
def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024
write(Path(sys.argv[1]), Path(sys.argv[2]), kind=sys.argv[4])  # whatever is loaded at the first use
Path("/proc/self/clear_refs").write_text("5")
bare = status("VmRSS")
write(Path(sys.argv[3]), Path(sys.argv[2] + "2"), kind=sys.argv[4], limit=10**9, memory=64 << 20)
print(status("VmHWM") - bare)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["hf", "dcp"])
def test_memory_is_the_budget_and_not_the_model(source: Path, tmp_path: Path, kind: str) -> None:
    large = tmp_path / "large"
    large.mkdir()
    save_file({f"t{i}": torch.randn(25_000_000) for i in range(4)}, large / "model.safetensors")  # 400 MB
    root = Path(__file__).parents[2]
    words = [sys.executable, "-c", BOUNDED, str(source), str(tmp_path / "out"), str(large), kind]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # the budget, and the same again for what the allocator holds back: far from the 400 MB of the model
    assert int(done.stdout.splitlines()[-1]) <= 128 << 20
