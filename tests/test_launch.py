"""One process in this process: everything is closed and put back, whatever happens."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from trnt import launch


class Fake:
    """A config whose trainer opens a process group, then does what it is told."""

    def __init__(self, fail: bool) -> None:
        self.fail, self.closed, self.seen = fail, False, {}

    def build(self) -> Any:
        self.seen = {key: os.environ[key] for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
        dist.init_process_group("gloo")
        gc.disable()
        return self

    def train(self) -> None:
        if self.fail:
            raise RuntimeError("train")

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("fail", [False, True])
def test_the_process_is_as_it_was_afterwards(fail: bool) -> None:
    before = dict(os.environ)
    fake = Fake(fail)
    if fail:
        with pytest.raises(RuntimeError, match="train"):
            launch.run(fake)
    else:
        assert launch.run(fake) is fake
    assert fake.closed
    assert fake.seen["WORLD_SIZE"] == "1"
    assert not dist.is_initialized()
    assert gc.isenabled()
    assert dict(os.environ) == before


def test_a_launcher_s_environment_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    port = str(launch.free_port())
    monkeypatch.setenv("MASTER_PORT", port)
    fake = Fake(False)
    launch.run(fake)
    assert fake.seen["MASTER_PORT"] == port == os.environ["MASTER_PORT"]


TWO = """
import json, os, sys
from pathlib import Path
from trnt import device, launch
from trnt.errors import TrntError, UsageError
device.ensure("cpu")
from torchtitan.config import CommConfig

asked = []

def decide():
    asked.append(launch.rank())
    return f"by {launch.rank()} of {launch.world_size()}"

def refuse():
    raise UsageError("cause", "fix")

with launch.joined(CommConfig()):
    found = {"shared": launch.shared(decide), "asked": asked}
    try:
        launch.shared(refuse)
    except TrntError as error:
        found["error"] = [error.cause, error.fix, error.exit_code]
import torch.distributed as dist
found["left"] = dist.is_initialized()
(Path(sys.argv[1]) / f"{launch.rank()}.json").write_text(json.dumps(found))
"""


def test_the_first_of_two_processes_decides_for_both(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, str(tmp_path / "two.py"), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert (first["asked"], second["asked"]) == ([0], [])
    for found in (first, second):
        assert found["shared"] == "by 0 of 2"
        assert found["error"] == ["cause", "fix", 2]
        assert found["left"] is False


def test_one_process_decides_for_itself() -> None:
    assert (launch.world_size(), launch.rank()) == (1, 0)
    with launch.joined(None):
        assert launch.shared(lambda: 7) == 7
    assert not dist.is_initialized()
