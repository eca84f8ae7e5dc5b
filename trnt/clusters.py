"""Scripts that start a training on the machines of a cluster: sbatch, Kubernetes manifests, plain ssh.

All of them run the same `trnt train` on every machine, with that machine's number and the first one's address. The
environment is a table with a reason for each line (SDK pages "Neuron Runtime environment variables", "How to use
torch.distributed on Neuron"). Not run on hardware.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from trnt.doctor import facts
from trnt.errors import UsageError

FILES = {"slurm": "trnt.sbatch", "pytorchjob": "trnt-pytorchjob.yaml", "jobset": "trnt-jobset.yaml", "ssh": "trnt.sh"}
# (name, value, why); several machines need the first three.
NETWORK = (
    ("FI_PROVIDER", "efa", "machines talk through EFA, the cards of the Trainium chips"),
    ("FI_EFA_USE_DEVICE_RDMA", "1", "from device memory to the card, not through the host's"),
)
DEVICE = (
    ("NEURON_LOGICAL_NC_CONFIG", "2", "two cores of a chip act as one; the same for all processes"),
    ("NEURON_RT_EXEC_TIMEOUT", "600", "seconds; a process that still compiles must not look like one that hangs"),
    ("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "1", "a graph that does not compile is an error, not a slow run"),
)
STALE = ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "NEURON_RT_ROOT_COMM_ID")
LIBRARIES = "/opt/amazon/efa/lib64:/opt/amazon/efa/lib"


@dataclass(frozen=True)
class Job:
    """What to run where."""

    words: tuple[str, ...]
    """The words after `trnt train`, without those that say which machine it is."""
    nnodes: int
    nproc: int
    name: str = "trnt"
    instance: str = "trn2.48xlarge"
    port: int = 29500
    hosts: tuple[str, ...] = ()
    """For ssh: the machines, the first one is where all meet."""
    image: str = ""
    claim: str = ""
    """For Kubernetes: a container image with trnt, and the volume claim that is mounted at `mount`."""
    mount: str = "/shared"
    time: str = ""
    partition: str = ""

    def train(self, node: str, endpoint: str) -> str:
        """The command of one machine; node and endpoint are the shell's words for its number and the meeting point."""
        shared = ["trnt", "train", "--nnodes", str(self.nnodes), "--nproc", str(self.nproc)]
        several = f" --node-rank {node} --rdzv-endpoint {endpoint}" if self.nnodes > 1 else ""
        return shlex.join(shared) + several + " " + shlex.join(self.words)


def script(cluster: str, job: Job) -> str:
    """The file's text. cluster: a key of `FILES`. Raises UsageError for what that cluster needs and the job lacks."""
    facts.instance(job.instance)
    return {"slurm": slurm, "pytorchjob": pytorchjob, "jobset": jobset, "ssh": ssh}[cluster](job)


def variables(job: Job) -> list[tuple[str, str, str]]:
    """The environment of a machine, with reasons."""
    return [*(NETWORK if job.nnodes > 1 else ()), *DEVICE]


def exports(job: Job) -> str:
    """The environment as lines of a shell script."""
    width = max(len(f"export {name}={value}") for name, value, _ in variables(job)) + 2
    lines = [f"{f'export {name}={value}':{width}}# {why}" for name, value, why in variables(job)]
    if job.nnodes > 1:
        lines.append("# export FI_EFA_FORK_SAFE=1  # only for kernels older than 5.15")
        lines.append("# where the EFA installer puts libfabric")
        lines.append(f'export LD_LIBRARY_PATH="{LIBRARIES}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"')
    lines.append("# left over from another job they hang this one; every process gets its own core from its number")
    lines.append("unset " + " ".join(STALE))
    return "\n".join(lines)


def slurm(job: Job) -> str:
    """For sbatch: one task per machine, which starts that machine's processes."""
    options = [f"--job-name={job.name}", f"--nodes={job.nnodes}", "--ntasks-per-node=1", "--exclusive"]
    options += [f"--time={job.time}"] if job.time else []
    options += [f"--partition={job.partition}"] if job.partition else []
    head = "\n".join(f"#SBATCH {option}" for option in options)
    train = job.train("$SLURM_NODEID", f"$TRNT_MEET:{job.port}")
    return f"""#!/bin/bash
# Submit with: sbatch FILE. Submitted again, the run goes on from its last checkpoint.
{head}
#SBATCH --signal=TERM@300   # five minutes before the time is over: finish the step, save, leave
#SBATCH --requeue           # after a machine failed: again, from the last checkpoint
#SBATCH --open-mode=append
set -euo pipefail

{exports(job)}

# the first machine of the job, where all processes meet
read -r TRNT_MEET < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export TRNT_MEET
# one task that fails ends the others; each has the number SLURM_NODEID
srun --kill-on-bad-exit=1 bash -c {shlex.quote(f"exec {train}")}
"""


def ssh(job: Job) -> str:
    """For machines that are reached by ssh from here, without a password."""
    if len(job.hosts) != job.nnodes:
        raise UsageError(
            f"ssh needs the names of {job.nnodes} machines, and --hosts has {len(job.hosts)}",
            "give --hosts NAME,NAME,... and as many as --nnodes says",
        )
    train = job.train("$1", f"{shlex.quote(job.hosts[0])}:{job.port}")
    return f"""#!/bin/bash
# Run it on a machine that reaches all of these by ssh without a password; trnt and the data have the same paths there.
# Ctrl-C finishes the step, saves and stops everywhere. Started again, the run goes on from its last checkpoint.
set -uo pipefail
hosts=({" ".join(map(shlex.quote, job.hosts))})
there=$(pwd)   # where to work on every machine

# what a machine runs; its number is $1
read -r -d '' remote <<'SCRIPT' || true
{exports(job)}
echo $$ > "/tmp/{job.name}-$1.pid"   # by which tell() below finds it
exec {train}
SCRIPT

tell() {{
    for node in "${{!hosts[@]}}"; do
        ssh "${{hosts[$node]}}" "kill -$1 \\$(cat /tmp/{job.name}-$node.pid)" || true
    done
}}
trap 'tell TERM' INT TERM

processes=()
for node in "${{!hosts[@]}}"; do
    # no terminal: Ctrl-C here must reach trnt there once, through tell
    setsid ssh "${{hosts[$node]}}" "cd $(printf %q "$there") && exec bash -lc $(printf %q "$remote") trnt $node" &
    processes+=($!)
done
code=0
for process in "${{processes[@]}}"; do
    wait "$process"; ended=$?
    while kill -0 "$process" 2> /dev/null; do wait "$process"; ended=$?; done   # a signal ends a wait early
    [ "$ended" -ne 0 ] && [ "$code" -eq 0 ] && code=$ended && [ "$ended" -ne 143 ] && tell TERM
done
exit "$code"
"""


def pod(job: Job, node: str, endpoint: str, indent: int) -> str:
    """A pod's spec as YAML: what runs, its environment, chips and cards."""
    if not job.image or not job.claim:
        raise UsageError(
            "Kubernetes needs a container image with trnt, and a volume that all pods share for --out",
            f"give --image IMAGE and --claim NAME (a PersistentVolumeClaim; it is mounted at {job.mount})",
        )
    instance = facts.instance(job.instance)
    command = (
        f"node={node}; meet={endpoint}; unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT {' '.join(STALE)}; exec "
        + (job.train('"$node"', '"$meet"'))
    )
    lines = [
        "restartPolicy: Never   # a new job goes on from the last checkpoint",
        "terminationGracePeriodSeconds: 600   # to finish the step and save after SIGTERM",
        "nodeSelector:",
        f"  node.kubernetes.io/instance-type: {job.instance}",
        "containers:",
        "- name: pytorch",
        f"  image: {job.image}",
        "  # the operator's RANK counts pods; trnt gives every process its own",
        f"  command: [bash, -c, {yaml_text(command)}]",
        "  env:",
    ]
    for name, value, why in variables(job):
        lines += [f"  # {why}", f'  - {{name: {name}, value: "{value}"}}']
    if job.nnodes > 1:
        lines += ["  # where the EFA installer puts libfabric", "  - name: LD_LIBRARY_PATH", f"    value: {LIBRARIES}"]
    lines += [
        "  resources:",
        "    limits:",
        f"      aws.amazon.com/neuron: {instance.chips}   # all chips of a machine",
    ]
    if job.nnodes > 1 and instance.efa:
        lines += [f"      vpc.amazonaws.com/efa: {instance.efa}   # all of its EFA cards"]
        lines += ["      hugepages-2Mi: 5120Mi   # what libfabric asks for", "      memory: 64Gi"]
    lines += [
        "  volumeMounts:",
        f"  - {{name: shared, mountPath: {job.mount}}}",
        "  - {name: shm, mountPath: /dev/shm}",
        "volumes:",
        f"- {{name: shared, persistentVolumeClaim: {{claimName: {job.claim}}}}}",
        "- {name: shm, emptyDir: {medium: Memory}}   # processes of a machine talk through it; the default is 64 MiB",
    ]
    return "\n".join(" " * indent + line for line in lines)


def yaml_text(text: str) -> str:
    """A string in YAML's double quotes, which are JSON's."""
    import json

    return json.dumps(text)


def pytorchjob(job: Job) -> str:
    """For Kubeflow's training operator: RANK, MASTER_ADDR and MASTER_PORT are its numbers of pods."""
    body = pod(job, "$RANK", "$MASTER_ADDR:$MASTER_PORT", 10)
    parts = [("Master", 1), ("Worker", job.nnodes - 1)]
    replicas = "\n".join(
        f"    {kind}:\n      replicas: {number}\n      restartPolicy: Never\n      template:\n        spec:\n{body}"
        for kind, number in parts
        if number
    )
    return f"""# Apply with: kubectl apply -f FILE
# Needs Kubeflow's training operator, and Neuron's and EFA's device plugins.
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: {job.name}
spec:
  runPolicy:
    cleanPodPolicy: None   # finished pods keep their logs
  pytorchReplicaSpecs:
{replicas}
"""


def jobset(job: Job) -> str:
    """For JobSet: an indexed job, its first pod found by the headless service that JobSet makes."""
    body = pod(job, "$JOB_COMPLETION_INDEX", f"{job.name}-machines-0-0.{job.name}:{job.port}", 14)
    return f"""# Apply with: kubectl apply -f FILE
# Needs JobSet, and Neuron's and EFA's device plugins.
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: {job.name}
spec:
  network:
    enableDNSHostnames: true   # pods find the first one by name
  failurePolicy:
    maxRestarts: 0
  replicatedJobs:
  - name: machines
    replicas: 1
    template:
      spec:
        parallelism: {job.nnodes}
        completions: {job.nnodes}
        completionMode: Indexed   # each pod has the number JOB_COMPLETION_INDEX
        backoffLimit: 0
        template:
            spec:
{body}
"""
