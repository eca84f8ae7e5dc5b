"""Variables, caches, the Hub, and what several machines need."""

from __future__ import annotations

import os
from pathlib import Path

from trnt import console
from trnt.doctor.facts import VARIABLES, Variable
from trnt.doctor.machine import Finding, Machine
from trnt.doctor.table import Check

CACHE_WANTED = 10 << 30
NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "lustre", "cifs", "fuse.s3fs", "efs"}
HUB = "huggingface.co"


def set_wrongly(machine: Machine, variable: Variable) -> bool:
    value = machine.env.get(variable.name, "")
    return bool(value) and (not variable.values or value.lower() in variable.values)


def check_variables(machine: Machine) -> Finding:
    found = [variable for variable in VARIABLES if set_wrongly(machine, variable)]
    if not found:
        return Finding("pass", "none is set that makes trouble")
    status = "fail" if any(variable.status == "fail" for variable in found) else "warn"
    said = "; ".join(f"{variable.name}={machine.env[variable.name]}: {variable.why}" for variable in found)
    return Finding(status, said, f"unset {' '.join(variable.name for variable in found)}")  # type: ignore[arg-type]


def check_num_cores(machine: Machine) -> Finding:
    """NEURON_RT_NUM_CORES must be the number of workers that a launcher starts here."""
    wanted, workers = machine.env.get("NEURON_RT_NUM_CORES"), machine.env.get("LOCAL_WORLD_SIZE")
    if not wanted:
        return Finding("pass", "NEURON_RT_NUM_CORES is not set")
    listing = machine.listing
    cores = 0 if isinstance(listing, str) else listing.cores
    other = workers or (str(cores) if cores else None)
    if other is not None and wanted != other:
        what = "workers are started" if workers else "cores are here"
        return Finding("warn", f"NEURON_RT_NUM_CORES is {wanted}, and {other} {what}", "unset NEURON_RT_NUM_CORES")
    return Finding("pass", f"NEURON_RT_NUM_CORES is {wanted}")


def check_neff_cache(machine: Machine) -> Finding:
    name = machine.env.get("TORCH_NEURONX_NEFF_CACHE_DIR") or "/tmp/neff_cache"
    folder = machine.at(name)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    fix = "export TORCH_NEURONX_NEFF_CACHE_DIR=<a folder on a local disk>"
    if not machine.access(there, os.W_OK):
        return Finding("fail", f"{name} may not be written", fix)
    kind = file_system(machine, name)
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding("warn", f"{name} is on a network file system ({kind})", fix)
    free = machine.disk(there).free
    if free < CACHE_WANTED:
        return Finding("warn", f"{console.human_bytes(free)} free at {name}", f"free some space, or {fix}")
    return Finding("pass", f"{name}, {console.human_bytes(free)} free")


def file_system(machine: Machine, path: str) -> str | None:
    """The type of the file system that holds a path, by /proc/mounts."""
    best = ("", None)
    for line in (machine.text("/proc/mounts") or "").splitlines():
        parts = line.split()
        if len(parts) < 3:
            continue
        place = parts[1].rstrip("/")
        if (path == parts[1] or path.startswith(place + "/")) and len(place) >= len(best[0]):
            best = (place, parts[2])  # type: ignore[assignment]
    return best[1]


def check_own_cache(machine: Machine) -> Finding:
    home = machine.env.get("HOME", "/")
    name = machine.env.get("TRNT_CACHE") or str(Path(machine.env.get("XDG_CACHE_HOME") or f"{home}/.cache") / "trnt")
    folder = Path(name)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not machine.access(there, os.W_OK):
        return Finding(
            "warn", f"{name} may not be written: tokens are prepared anew each time", "export TRNT_CACHE=<a folder>"
        )
    return Finding("pass", f"{name}, {console.human_bytes(machine.disk(there).free)} free")


def check_hub(machine: Machine) -> Finding:
    if machine.env.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return Finding("pass", "HF_HUB_OFFLINE is set: only local folders are used")
    proxy = next((machine.env[n] for n in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY") if machine.env.get(n)), None)
    if proxy is not None:
        address = proxy.partition("://")[2] or proxy
        host, _, port = address.rpartition("@")[2].rstrip("/").partition(":")
        why = machine.connect(host, int(port) if port.isdigit() else 8080, 3.0)
        if why:
            return Finding("warn", f"the proxy {host} does not answer: {why}", "correct HTTPS_PROXY, or unset it")
        return Finding("pass", f"through the proxy {host}")
    why = machine.connect(HUB, 443, 3.0)
    if why:
        return Finding(
            "warn", f"{HUB} cannot be reached: {why}",
            "name local folders, and export HF_HUB_OFFLINE=1; behind a proxy set HTTPS_PROXY",
        )  # fmt: skip
    return Finding("pass", f"{HUB} answers")


def check_token(machine: Machine) -> Finding:
    """Whether there is a token; it is never read out."""
    home = Path(machine.env.get("HF_HOME") or f"{machine.env.get('HOME', '')}/.cache/huggingface")
    if machine.env.get("HF_TOKEN") or (home / "token").is_file():
        return Finding("pass", "there is a token for gated models")
    return Finding("skip", "no token; gated models need one ('hf auth login')")


def check_efa(machine: Machine) -> Finding:
    if machine.nodes < 2:
        return Finding("skip", "one machine; ask with --nodes 2 or more")
    installer = "install the EFA installer of your SDK release, then log in again"
    usual = machine.at("/opt/amazon/efa/bin/fi_info")
    tool = machine.which("fi_info") or (usual if usual.is_file() else None)
    if tool is None:
        return Finding("fail", f"{machine.nodes} machines, and no fi_info: EFA is not installed", installer)
    done = machine.run([str(tool), "-p", "efa"])
    if done.code != 0 or "efa" not in done.out:
        return Finding("fail", f"{machine.nodes} machines, and no EFA device: {done.said[:120]}", installer)
    missing = [
        f"{k}={v}" for k, v in (("FI_PROVIDER", "efa"), ("FI_EFA_USE_DEVICE_RDMA", "1")) if machine.env.get(k) != v
    ]
    if missing:
        return Finding("warn", f"not set: {', '.join(missing)}", f"export {' '.join(missing)}")
    return Finding("pass", f"{done.out.count('provider: efa') or 1} EFA devices")


CHECKS = (
    Check(
        "environment.variables", "Variables", check_variables, "variables that make trouble: the table below",
        "every worker asks for the same core; hangs at the start", neuron=True,
    ),
    Check(
        "environment.num_cores", "Number of cores", check_num_cores, "NEURON_RT_NUM_CORES against workers and cores",
        "`Neuron cores are not contiguous`", neuron=True,
    ),
    Check(
        "environment.neff_cache", "Compiled graphs", check_neff_cache, "their folder: writable, local, with room",
        "every start compiles again", neuron=True,
    ),
    Check("environment.cache", "trnt's cache", check_own_cache, "where prepared tokens are kept"),
    Check("environment.token", "Hub token", check_token, "whether there is one; it is never shown"),
    Check(
        "environment.hub", "Hub", check_hub, "a connection to the Hub, directly or through the proxy",
        "`cannot be downloaded: the Hub cannot be reached`", slow=True,
    ),
    Check(
        "environment.efa", "EFA", check_efa, "with --nodes 2 or more: fi_info, EFA devices, FI_* variables",
        "`Ofi plugin is not installed or EFA is not enabled`", neuron=True,
    ),
)  # fmt: skip
