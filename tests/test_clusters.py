"""Scripts for clusters are run: two machines are two launchers here, behind a scheduler and an ssh that are played."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_elastic import meeting_port
from trnt import clusters
from trnt.clusters import Job
from trnt.errors import UsageError

SMALL = ("--model", "qwen3-tiny", "--seq-len", "32", "--batch-size", "2", "--steps", "2")
# srun starts the command on every machine with its number, scontrol names them, ssh runs words in a shell of its own.
PLAYED = {
    "srun": 'shift\nfor i in 0 1; do SLURM_NODEID=$i "$@" & p[$i]=$!; done\nwait ${p[0]} && wait ${p[1]}',
    "scontrol": "echo 127.0.0.1; sleep 0.2; echo other",  # its reader may be gone by then
    "ssh": 'shift\nexec bash -c "$*"',
}


def job(out: Path, **more: Any) -> Job:
    return Job((*SMALL, "--out", str(out)), 2, 1, port=meeting_port(), **more)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A PATH with trnt and the played programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in PLAYED.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "trnt").write_text(f'#!/bin/bash\nexec {sys.executable} -m trnt "$@"\n')
    (folder / "trnt").chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    profile = tmp_path / "home"
    profile.mkdir()
    (profile / ".bash_profile").write_text(f"export PATH={path}\n")  # of the machine that ssh reaches
    return {**os.environ, "PATH": path, "HOME": str(profile), "SLURM_JOB_NODELIST": "played", "OMP_NUM_THREADS": "1"}


def run(text: str, tmp_path: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    file = tmp_path / "job.sh"
    file.write_text(text)
    return subprocess.Popen(
        ["bash", str(file)],
        env=environment,
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def steps(out: Path) -> list[dict[str, Any]]:
    path = out / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["slurm", "ssh"])
def test_the_script_trains_on_two_machines(cluster: str, tmp_path: Path, environment: dict[str, str]) -> None:
    out = tmp_path / "my run"
    wanted = job(out, hosts=("127.0.0.1", "localhost"), name=f"trnt-{os.getpid()}")
    told = run(clusters.script(cluster, wanted), tmp_path, environment)
    _, stderr = told.communicate(timeout=180)
    assert told.returncode == 0, stderr
    assert [row["step"] for row in steps(out)] == [1, 2]
    assert steps(out)[-1]["tokens"] == 2 * 2 * 2 * 32  # both machines' rows


@pytest.mark.slow
def test_ctrl_c_at_the_ssh_script_saves_everywhere(tmp_path: Path, environment: dict[str, str]) -> None:
    out = tmp_path / "run"
    wanted = job(out, hosts=("127.0.0.1", "localhost"), name=f"trnt-stop-{os.getpid()}")
    wanted = Job((*wanted.words, "--steps", "100000"), 2, 1, port=wanted.port, hosts=wanted.hosts, name=wanted.name)
    told = run(clusters.script("ssh", wanted), tmp_path, environment)
    end = time.monotonic() + 120
    while len(steps(out)) < 2:
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)
    os.kill(told.pid, signal.SIGINT)
    _, stderr = told.communicate(timeout=120)
    assert told.returncode == 143, stderr
    last = steps(out)[-1]["step"]
    assert (out / "checkpoint" / f"step-{last}").is_dir()


def test_the_environment_is_explained_line_by_line() -> None:
    text = clusters.exports(Job((), 2, 64))
    lines = text.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith(("export ", "unset ")):
            assert "  # " in line or before.startswith("# "), line
    for name, value, why in (*clusters.NETWORK, *clusters.DEVICE):
        assert f"export {name}={value}" in text
        assert why in text
    alone = clusters.exports(Job((), 1, 64))
    assert "FI_" not in alone  # no network between machines
    assert "NEURON_LOGICAL_NC_CONFIG=2" in alone
    assert "unset NEURON_RT_VISIBLE_CORES" in alone


def pods(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    if manifest["kind"] == "PyTorchJob":
        return [part["template"]["spec"] for part in manifest["spec"]["pytorchReplicaSpecs"].values()]
    return [part["template"]["spec"]["template"]["spec"] for part in manifest["spec"]["replicatedJobs"]]


@pytest.mark.parametrize("cluster", ["pytorchjob", "jobset"])
def test_the_manifest_asks_for_all_chips_and_cards(cluster: str) -> None:
    wanted = Job(("--model", "qwen3-8b", "--out", "/shared/my run"), 3, 64, image="trnt:1", claim="runs")
    manifest = yaml.safe_load(clusters.script(cluster, wanted))
    for pod in pods(manifest):
        (container,) = pod["containers"]
        assert container["resources"]["limits"]["aws.amazon.com/neuron"] == 16
        assert container["resources"]["limits"]["vpc.amazonaws.com/efa"] == 16
        named = {item["name"]: item["value"] for item in container["env"]}
        assert named["FI_PROVIDER"] == "efa"
        assert all(isinstance(value, str) for value in named.values())
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    if cluster == "pytorchjob":
        parts = manifest["spec"]["pytorchReplicaSpecs"]
        assert {kind: part["replicas"] for kind, part in parts.items()} == {"Master": 1, "Worker": 2}
    else:
        inner = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
        assert (inner["parallelism"], inner["completions"], inner["completionMode"]) == (3, 3, "Indexed")


@pytest.mark.parametrize(
    ("cluster", "given"),
    [
        ("pytorchjob", {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "first", "MASTER_PORT": "23456"}),
        ("jobset", {"JOB_COMPLETION_INDEX": "1"}),
    ],
)
def test_a_pod_s_command_knows_its_number_and_where_to_meet(
    cluster: str, given: dict[str, str], tmp_path: Path
) -> None:
    told = tmp_path / "trnt"
    told.write_text('#!/bin/bash\nprintf "%s\\n" "$@" "RANK=${RANK-none}" "WORLD_SIZE=${WORLD_SIZE-none}"\n')
    told.chmod(0o755)
    wanted = Job(("--out", "/shared/my run"), 2, 64, image="trnt:1", claim="runs")
    command = pods(yaml.safe_load(clusters.script(cluster, wanted)))[-1]["containers"][0]["command"]
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **given}
    words = subprocess.run(command, env=environment, capture_output=True, text=True).stdout.splitlines()
    meet = "first:23456" if cluster == "pytorchjob" else "trnt-machines-0-0.trnt:29500"
    machine = ["train", "--nnodes", "2", "--nproc", "64", "--node-rank", "1", "--rdzv-endpoint", meet]
    assert words == [*machine, "--out", "/shared/my run", "RANK=none", "WORLD_SIZE=none"]


def test_what_is_missing_is_named() -> None:
    for cluster, wanted, said in (
        ("ssh", Job((), 2, 1, hosts=("a",)), "--hosts has 1"),
        ("jobset", Job((), 2, 1), "container image"),
        ("slurm", Job((), 2, 1, instance="trn2.48xlarg"), "trn2.48xlarg"),
    ):
        with pytest.raises(UsageError, match=said):
            clusters.script(cluster, wanted)
