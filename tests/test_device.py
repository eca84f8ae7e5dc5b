"""The bootstrap: shims in force before torchtitan, one device per process, sane numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trnt import device
from trnt.errors import TrntError

ROOT = Path(__file__).parent.parent / "trnt"


def modules_with_torchtitan() -> list[str]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text()
        if any(line.startswith(("from torchtitan", "import torchtitan")) for line in text.splitlines()):
            found.append(".".join(path.relative_to(ROOT.parent).with_suffix("").parts))
    return found


def test_there_are_modules_on_torchtitan() -> None:
    assert "trnt.trainer" in modules_with_torchtitan()


@pytest.mark.parametrize("module", modules_with_torchtitan())
def test_every_module_on_torchtitan_applies_the_shims_before_it(module: str) -> None:
    lines = (ROOT.parent / (module.replace(".", "/") + ".py")).read_text().splitlines()
    ensured = next(i for i, line in enumerate(lines) if line.startswith("device.ensure("))
    imported = next(i for i, line in enumerate(lines) if line.startswith(("from torchtitan", "import torchtitan")))
    assert ensured < imported


def test_the_shims_are_in_force_and_the_device_cannot_change() -> None:
    code = (
        "from trnt import device; device.ensure('cpu')\n"
        "import torchtitan.components.metrics as m, torch.distributed as d\n"
        "assert m.device_type == 'cpu' and m.device_module.device_count() == 1 and hasattr(d, 'set_timeout')\n"
        "assert device.ensure() == device.ensure('auto') == 'cpu'\n"
        "try: device.ensure('cuda')\n"
        "except Exception as e: print(type(e).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "TrntError", done.stderr


@pytest.mark.parametrize("kind", ["neuron", "cuda"])
def test_a_device_that_is_not_there_is_one_line_with_a_fix(kind: str) -> None:
    if device.available(kind):
        pytest.skip(f"this machine has {kind}")
    with pytest.raises(TrntError) as caught:
        device.resolve(kind)
    assert f"no {kind} device" in caught.value.cause
    assert "--device cpu" in caught.value.fix


def test_auto_prefers_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, expected in ((("cpu",), "cpu"), (("cpu", "cuda"), "cuda"), (("cpu", "cuda", "neuron"), "neuron")):
        monkeypatch.setattr(device, "available", lambda kind, there=there: kind in there)
        assert device.resolve("auto") == expected


def test_every_hardware_number_has_its_source() -> None:
    for row in device.HARDWARE.values():
        assert row.peak_flops_bf16 > 1e12
        assert len(row.source) > 20


def test_the_cpu_peak_is_measured_once() -> None:
    assert device.cpu_peak_flops() == device.cpu_peak_flops() > 1e9


def test_the_matmul_rate_is_measured_again_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(device, "matmul_flops", lambda size=1024, repeats=5: sizes.append(size) or 1e9 * len(sizes))
    monkeypatch.setattr(device, "_cpu_peak", None)
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    rate = device.MatmulRate()
    assert rate.now() == 1.5e9  # the first, and one of now
    clock[0] = 4.0
    assert rate.now() == 1.5e9
    clock[0] = 6.0
    assert rate.now() == 2e9
    clock[0] = 60.0
    rate.now()
    assert sizes == [1024, 1024, 1024, 2048]
