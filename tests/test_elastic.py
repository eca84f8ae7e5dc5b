"""The launcher: real processes that end as the user, the kernel or a fault wants it, with nothing left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trnt import elastic
from trnt.errors import TrntError

TRNT = [sys.executable, "-m", "trnt"]
SMALL = ["--model", "qwen3-tiny", "--seq-len", "32", "--batch-size", "2"]


def begin(*words: str) -> subprocess.Popen[str]:
    command = [*TRNT, "train", *SMALL, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def running(out: Path) -> list[int]:
    """Processes whose command line names this run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(out).encode() in (entry / "cmdline").read_bytes() and (entry / "stat").read_text().split()[2] != "Z":
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_for(what: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)


def rows(out: Path) -> int:
    path = out / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.is_file() else 0


def meeting_port() -> int:
    """A free port below those that the system hands out, so that no other test gets it before it is used."""
    while True:
        port = random.randrange(15000, 32000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def rank_of(pid: int) -> str:
    items = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((item[5:].decode() for item in items if item.startswith(b"RANK=")), "")


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_every_process_after_saving(tmp_path: Path, signum: int, code: int) -> None:
    out = tmp_path / "run"
    run = begin("--nproc", "2", "--steps", "100000", "--out", str(out), "--json")
    wait_for(lambda: rows(out) >= 2)
    run.send_signal(signum)
    stdout, stderr = run.communicate(timeout=60)
    assert run.returncode == code, stderr
    assert "finishing this step" in stderr
    assert "error" not in stderr
    summary = json.loads(stdout)
    assert summary["stopped_by"] == signal.Signals(signum).name
    assert (out / "checkpoint" / f"step-{summary['step']}" / ".metadata").is_file()
    assert rows(out) == summary["step"]
    assert running(out) == []
    log = (out / "logs" / "rank-1.stderr.log").read_text()
    assert "on 2 processes (dp-shard 2)" in log
    assert f"run folder: {out}" in (out / "logs" / "rank-0.log").read_text()


@pytest.mark.slow
def test_a_killed_process_is_named_and_the_others_end(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = begin("--nproc", "2", "--steps", "100000", "--out", str(out))
    wait_for(lambda: rows(out) >= 2)
    victim = next(pid for pid in running(out) if rank_of(pid) == "1")
    os.kill(victim, signal.SIGKILL)
    _, stderr = run.communicate(timeout=90)
    assert run.returncode == 1
    errors = [line for line in stderr.splitlines() if line.startswith("error:")]
    assert errors == [
        f"error: process 1: killed by SIGKILL (by the kernel, if memory ran out) (log: {out}/logs/rank-1.stderr.log)"
    ]
    assert "Traceback" not in stderr
    wait_for(lambda: running(out) == [])


@pytest.mark.slow
def test_no_process_outlives_its_launcher(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = begin("--nproc", "2", "--steps", "100000", "--out", str(out))
    wait_for(lambda: rows(out) >= 2)
    assert len(running(out)) == 3
    run.kill()
    run.wait()
    wait_for(lambda: running(out) == [], 60)
    assert rows(out) >= 2  # the store died too: they may not be able to save


@pytest.mark.slow
def test_two_launchers_are_one_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    meet = f"127.0.0.1:{meeting_port()}"
    shared = ("--nnodes", "2", "--nproc", "1", "--rdzv-endpoint", meet, "--steps", "3", "--out", str(out), "--json")
    first, second = (begin(*shared, "--node-rank", str(number)) for number in range(2))
    told = [run.communicate(timeout=120) for run in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), told
    assert json.loads(told[0][0])["step"] == 3
    assert told[1][0] == ""
    assert json.loads(told[0][0])["tokens"] == 3 * 2 * 2 * 32


@pytest.mark.slow
def test_a_failure_in_training_is_one_line_with_its_log(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = begin("--nproc", "2", "--steps", "3", "--lr", "1e30", "--warmup", "0", "--out", str(out))
    _, stderr = run.communicate(timeout=120)
    assert run.returncode == 1
    (line,) = [line for line in stderr.splitlines() if line.startswith("error:")]
    assert "stopped before the optimizer step" in line
    assert f"(log: {out}/logs/rank-" in line
    assert [line for line in stderr.splitlines() if line.startswith("fix:")]
    assert "Traceback" in (out / "logs" / "rank-1.stderr.log").read_text()


def test_what_cannot_be_is_named_before_any_process(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for words, said in (
        (("--nproc", "4", "--tp", "3"), "--tp 3 does not divide the 4 processes"),
        (("--nproc", "2", "--pp", "2"), "--pp needs a head"),
        (("--nnodes", "2"), "several machines need one place to meet"),
        (("--nnodes", "2", "--node-rank", "2"), "--node-rank 2 of --nnodes 2"),
    ):
        run = begin(*words, "--out", str(out))
        _, stderr = run.communicate(timeout=60)
        assert run.returncode == 2
        assert said in stderr
        assert "fix:" in stderr
        assert not out.exists()


def failed(folder: Path, rank: int, at: float, cause: str, code: int = 1) -> None:
    mine = {"cause": cause, "fix": "fix", "exit_code": code, "at": at}
    (folder / f"{rank}.json").write_text(json.dumps({"message": {"message": cause}, "trnt": mine}))


def test_the_first_failure_is_the_one_that_is_told(tmp_path: Path) -> None:
    failed(tmp_path, 0, 20.0, "what followed")
    failed(tmp_path, 3, 10.0, "what began it", 2)
    found = elastic.first_failure(tmp_path, {0: 1, 3: 2})
    assert found is not None
    assert (found[0], found[1].cause, found[1].exit_code) == (3, "what began it", 2)
    killed = elastic.first_failure(tmp_path, {0: 1, 2: -signal.SIGKILL, 3: -signal.SIGTERM})
    assert killed is not None
    assert killed[0] == 2
    assert "SIGKILL" in killed[1].cause


def test_leaving_after_a_signal_is_no_failure(tmp_path: Path) -> None:
    assert elastic.first_failure(tmp_path, {0: 130, 1: 130}) is None
    found = elastic.first_failure(tmp_path, {0: 143, 1: 7})
    assert found is not None
    assert found[1].cause == "ended with exit code 7"


def test_only_a_process_with_a_launcher_leaves_its_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = TrntError("cause", "fix", 2)
    monkeypatch.delenv(elastic.LOGS, raising=False)
    assert elastic.tell(error, "trace") is False
    assert elastic.joined_a_launcher() is False
    path = tmp_path / "0.json"
    monkeypatch.setenv(elastic.LOGS, str(tmp_path))
    monkeypatch.setenv(elastic.ERROR_FILE, str(path))
    assert elastic.tell(error, "trace") is True
    found = elastic.first_failure(tmp_path, {})
    assert found is not None
    assert (found[0], found[1].cause, found[1].fix, found[1].exit_code) == (0, "cause", "fix", 2)


def test_a_failure_is_told_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "1.json"
    monkeypatch.setenv(elastic.ERROR_FILE, str(path))
    monkeypatch.setenv(elastic.LOGS, str(tmp_path))
    cause = "x" * 100_000
    writer = os.fork()
    if not writer:  # writes again and again
        while True:
            elastic.tell(TrntError(cause, "fix"), "trace")
    seen = 0
    end = time.monotonic() + 60
    try:
        while seen < 200 and time.monotonic() < end:
            if path.exists():
                found = elastic.first_failure(tmp_path, {})
                assert found is not None
                assert found[1].cause == cause
                seen += 1
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    assert seen == 200
