"""One process in this process: everything is closed and put back, whatever happens."""

from __future__ import annotations

import gc
import os
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
