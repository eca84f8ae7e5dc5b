"""`trnt launch`: the script that trains on a cluster."""

from __future__ import annotations

from typing import Any

import typer

from trnt.flags import give, signature

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
CLUSTERS = ("slurm", "k8s", "ssh")


def command(context: typer.Context, **given: Any) -> None:
    """Write the script that trains on a cluster; it takes every option of 'trnt train', and starts nothing.

    slurm: a script for sbatch. k8s: a manifest for Kubeflow's PyTorchJob, or for JobSet. ssh: a script for machines
    that are reached without a password. The Neuron and EFA environment is in it with a reason for each line. --out is
    a folder that all machines see. Options are checked here, before anybody waits for machines.

    Examples:
      trnt launch --cluster slurm --nnodes 4 --model qwen3-8b --tp 4 --out /shared/runs/big
      trnt launch --cluster k8s --nnodes 2 --image trnt:1 --claim runs --model qwen3-8b --out /shared/runs/big
      trnt launch --cluster ssh --hosts a,b --nnodes 2 --nproc 2 --model qwen3-tiny --out runs/two --file start.sh
    """
    from pathlib import Path

    from trnt import clusters, config, console, flags
    from trnt.errors import UsageError, unknown
    from trnt.ready import check_cluster

    own = {name: given.pop(name) for name, *_ in OWN}
    recipe, sets = given.pop("recipe"), given.pop("set_")
    cluster = own["cluster"]
    if cluster not in CLUSTERS:
        raise unknown("cluster", cluster, CLUSTERS)
    if cluster == "k8s":
        cluster = own["manifest"]
        if cluster not in ("pytorchjob", "jobset"):
            raise unknown("manifest", cluster, ("pytorchjob", "jobset"))
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = config.resolve(chosen, arguments=context.args, sets=sets or (), recipe=recipe)
    machines = check_cluster(settings, own["instance"])
    job = clusters.Job(
        tuple(flags.words(settings, without=("nnodes", "nproc", "node_rank", "rdzv_endpoint"))),
        machines.nnodes,
        machines.nproc,
        **{name: own[name] for name in ("name", "instance", "port", "image", "claim", "time", "partition")},
        hosts=tuple(filter(None, own["hosts"].split(","))),
    )
    text = clusters.script(cluster, job)
    if own["file"] == "-":
        console.result(text.rstrip("\n"))
        return
    path = Path(own["file"] or clusters.FILES[cluster])
    if path.exists() and not own["replace"]:
        raise UsageError(f"{path} exists already", "name another --file, or add --replace")
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755 if cluster in ("slurm", "ssh") else 0o644)
    if own["json_"]:
        console.result_json({"file": str(path), "cluster": cluster, "nnodes": job.nnodes, "nproc": job.nproc})
    else:
        console.result(f"wrote {path}: {job.nnodes} machines x {job.nproc} processes (not run on hardware)")


def text_option(flag: str, help_: str, **more: Any) -> Any:
    return typer.Option(flag, help=help_, **more)


OWN: tuple[tuple[str, Any, Any, Any], ...] = (
    ("cluster", str, ..., text_option("--cluster", "slurm, k8s or ssh", metavar="KIND")),
    ("manifest", str, "pytorchjob", text_option("--manifest", "For k8s: pytorchjob or jobset", metavar="KIND")),
    ("file", str | None, None, text_option("--file", "Where to write; - for stdout  [default: by the cluster]")),
    ("replace", bool, False, text_option("--replace", "Overwrite the file")),
    ("instance", str, "trn2.48xlarge", text_option("--instance", "Instance type: its cores, chips and network cards")),
    ("name", str, "trnt", text_option("--name", "The job's name")),
    ("port", int, 29500, text_option("--port", "Where processes meet on the first machine", min=1024, max=65535)),
    ("hosts", str, "", text_option("--hosts", "For ssh: the machines, separated by commas")),
    ("image", str, "", text_option("--image", "For k8s: the container image")),
    ("claim", str, "", text_option("--claim", "For k8s: the volume claim, mounted at /shared")),
    ("time", str, "", text_option("--time", "For slurm: the time limit, such as 1-12:00:00")),
    ("partition", str, "", text_option("--partition", "For slurm: the partition")),
    ("json_", bool, False, text_option("--json", "The result as JSON on stdout")),
)

give(command, signature(OWN, hidden=True))
