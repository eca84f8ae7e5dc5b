"""`trnt train` as a user types it, in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trnt.options import OPTIONS, flag_of

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = ("--model", "qwen3-tiny", "--layers", "1", "--seq-len", "32", "--batch-size", "2", "--device", "cpu")


def test_help_lists_every_option_of_the_table(trnt: Run) -> None:
    done = trnt("train", "--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for option in OPTIONS:
        assert flag_of(option.name) in done.stdout
    for panel in {option.panel for option in OPTIONS}:
        assert panel in done.stdout


def test_a_run_folder_holds_everything_it_promises(trnt: Run, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = trnt("train", *SMALL, "--data", str(corpus), "--steps", "4", "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert next(iter(summary)) == "schema_version"
    assert summary["step"] == 4
    assert summary["last_loss"] < summary["first_loss"]
    for name in (
        "run.json",
        "recipe.toml",
        "config.json",
        "metrics.jsonl",
        "loss.png",
        "summary.json",
        "tokenizer/tokenizer.json",
    ):
        assert (out / name).stat().st_size > 0, name
    assert list((out / "tb").rglob("events.out.tfevents*"))
    assert Path(summary["checkpoint"]) == out / "checkpoint" / "step-4"
    row = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    keys = {"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_s", "flops_per_s", "memory_bytes", "data_wait_s"}
    assert keys <= row.keys()
    assert row["tokens"] == 4 * 2 * 32
    assert "tok/s" in done.stderr
    assert "\x1b" not in done.stderr + done.stdout
    again = trnt("train", *SMALL, "--data", str(corpus), "--steps", "4", "--out", str(out))
    assert again.returncode == 0
    assert "nothing left to train" in again.stdout


def test_dry_run_prints_the_plan_and_makes_nothing(trnt: Run, tmp_path: Path) -> None:
    done = trnt(
        "train", "--model", "qwen3-30b-a3b", "--layers", "4", "--experts", "64", "--dry-run", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["plan"]
    assert plan["params_total"] == pytest.approx(1.906e9, rel=1e-3)
    assert plan["tokens_per_step"] == 4 * 256
    assert list(tmp_path.iterdir()) == []


def test_dry_run_says_what_each_process_would_send(trnt: Run, tmp_path: Path) -> None:
    """The bytes that `tests/parallel/test_layouts.py` counts for this layout's kind; none where there is no formula."""
    words = ("train", "--model", "qwen3-tiny-moe", "--seq-len", "64", "--batch-size", "1", "--dry-run", "--json")
    done = trnt(*words, "--nproc", "4", "--ep", "4", cwd=tmp_path)
    counted = 7_977_216 + 8_707_584  # gathered and reduced among four processes: all but the experts
    exchanged = 3 * (4 * 64 * 4 * 256 * 4 + 16 * 8)  # four layers, three quarters of four exchanges and the counts
    assert json.loads(done.stdout)["plan"]["sent_bytes"] == {"fsdp": counted, "ep": exchanged}
    plain = trnt(*words, "--nproc", "2", "--tp", "2", "--no-sequence-parallel", cwd=tmp_path)
    assert json.loads(plain.stdout)["plan"]["sent_bytes"] is None


def test_print_config_tells_every_origin(trnt: Run, tmp_path: Path) -> None:
    done = trnt("train", "--recipe", "laptop", "--steps", "9", "--print-config", env={"TRNT_SEED": "3"}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "steps = 9 # flag" in done.stdout
    assert "seed = 3 # TRNT_SEED" in done.stdout
    assert 'model = "qwen3-tiny-moe" # recipe laptop.toml' in done.stdout
    as_json = trnt("train", *SMALL, "--training.max_norm", "0.25", "--print-config", "--json", cwd=tmp_path)
    tree = json.loads(as_json.stdout)
    assert tree["config"]["training"]["max_norm"] == 0.25
    assert tree["options"]["seq_len"] == {"value": 32, "origin": "flag"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "cause", "fix"),
    [
        (["--steps", "0"], 2, "--steps must be at least 1", "--steps 1"),
        (["--steps", "1e3"], 2, "--steps must be a whole number", "--steps 8"),
        (["--lr", "nan"], 2, "--lr must be a finite number", "3e-4"),
        (["--lr=-1"], 2, "--lr must be", "3e-4"),
        (["--stepz", "3"], 2, "unknown option --stepz", "--steps"),
        (["--model", "qwen3-tinny"], 2, "qwen3-tinny", "qwen3-tiny"),
        (["--device", "cuda"], 1, "no cuda device", "--device cpu"),
        (["--compile", "neuron", "--device", "cpu"], 1, "needs a Neuron device", "trnt doctor --require neuron"),
        (["--training.seq_lenn", "8"], 2, "unknown option --training.seq_lenn", "--training.seq_len"),
        (["--data", "nowhere.txt"], 2, "nowhere.txt", ""),
        (["extra"], 2, "unexpected argument 'extra'", ""),
        (["--recipe", "laptopp"], 2, "unknown recipe 'laptopp'", "laptop"),
    ],
)
def test_errors_are_one_cause_and_one_fix(
    trnt: Run, tmp_path: Path, words: list[str], code: int, cause: str, fix: str
) -> None:
    done = trnt("train", *words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    # the first to tokenise on a busy machine may take long enough to say so
    lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("tokenising")]
    assert [line.partition(":")[0] for line in lines] == ["error", "fix"], done.stderr
    assert cause in lines[0]
    assert fix in lines[1]
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_finish_the_step_save_and_leave(corpus: Path, tmp_path: Path, signum: int, code: int) -> None:
    out = tmp_path / "run"
    words = [*SMALL, "--data", str(corpus), "--steps", "100000", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "trnt", "train", *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 90
    metrics = out / "metrics.jsonl"
    while time.monotonic() < deadline and not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(0.02)
    os.kill(process.pid, signum)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    assert "finishing this step" in stderr
    assert "stopped early" in stdout
    last = json.loads(metrics.read_text().splitlines()[-1])["step"]
    assert [p.name for p in (out / "checkpoint").iterdir()] == [f"step-{last}"]
    assert json.loads((out / "summary.json").read_text())["stopped_by"] == signal.Signals(signum).name


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3-tiny", "qwen3-tiny-moe"])
def test_a_compiled_run_gives_the_eager_losses(
    model: str, trnt: Run, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # inductor sets it in a process that compiled before
    runs, told = {}, {}
    for name in ("none", "inductor"):
        words = (
            "train",
            *SMALL,
            "--model",
            model,
            "--data",
            str(corpus),
            "--steps",
            "3",
            "--out",
            str(tmp_path / name),
        )
        done = trnt(*words, "--compile", name, "--json")
        assert done.returncode == 0, done.stderr
        told[name] = json.loads(done.stdout)
        rows = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        runs[name] = [json.loads(row)["loss"] for row in rows]
    assert told["none"]["compile_seconds"] is None
    assert told["inductor"]["compile_seconds"] > 0
    assert f"kept in {Path(os.environ['TRNT_CACHE']) / 'inductor'}" in done.stderr
    # the compiler fuses and reorders fp32 arithmetic: about 1e-6 relative here
    assert runs["inductor"] == pytest.approx(runs["none"], rel=1e-4)
