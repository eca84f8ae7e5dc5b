"""What is made of torch's answers, and of what is no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.fake import Fake
from trnt.doctor import devices


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("kill -SEGV $$", "died with SIGSEGV"),
        ("echo 'ModuleNotFoundError: No module named torch' >&2; exit 1", "No module named torch"),
        ("echo garbage", "printed nothing"),
        ("echo '[1]'", "something else"),
        ("exit 3", "printed nothing"),
    ],
)
def test_a_torch_that_does_not_work_is_a_finding(tmp_path: Path, body: str, said: str) -> None:
    fake = Fake(tmp_path)
    fake.python_dies("look", body)
    finding = devices.check_torch(fake.machine())
    assert finding.status == "fail"
    assert said in finding.detail
    assert finding.fix.startswith("pip install")


def test_cuda_is_told(tmp_path: Path) -> None:
    fake = Fake(tmp_path, chips=0)
    fake.remove("sys/module/neuron")
    fake.answers["look"]["devices"]["cuda"] = True
    assert devices.check_kind(fake.machine()).detail == "CUDA; no Trainium here"


def test_a_machine_whose_cores_torch_does_not_count_fails(tmp_path: Path) -> None:
    fake = Fake(tmp_path)
    fake.answers["device"]["count"] = 0
    finding = devices.check_kind(fake.machine())
    assert (finding.status, "counts no core" in finding.detail) == ("fail", True)
