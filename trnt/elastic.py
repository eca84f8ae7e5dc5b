"""Many processes of one command, started by torch's elastic launcher, on one or several machines.

Process 0 has this terminal; the others write to RUN/logs. A signal reaches every process, which finish the step, save
and leave. When one fails, the others are stopped and the first failure is told in one line. A process whose launcher
is killed gets SIGTERM from the kernel (Linux), so that none stays behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnt import console, errors
from trnt.errors import TrntError

LOGS = "TRNT_LOGS"  # set for every process that this file starts: the folder of logs
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
PATIENCE_S = 3600  # for finishing a step and saving after a signal, before SIGKILL
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Machines:
    """How many processes run where."""

    nproc: int
    nnodes: int = 1
    node_rank: int = 0
    endpoint: str | None = None
    """host:port of the machine of node rank 0; None for one machine."""

    @property
    def world_size(self) -> int:
        return self.nproc * self.nnodes


def log_of(folder: Path, rank: int) -> Path:
    """Where a process's messages are kept."""
    return folder / ("rank-0.log" if rank == 0 else f"rank-{rank}.stderr.log")


def start(words: list[str], machines: Machines, logs: Path) -> int:
    """Run `trnt WORDS` as `machines.nproc` processes here. Returns the exit code: 0, 130 or 143.

    logs: a folder for one file per process. Raises TrntError with the cause of the first process that failed.
    """
    import logging

    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logs.mkdir(parents=True, exist_ok=True)
    os.environ[LOGS] = str(logs)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // machines.nproc)))
    logging.disable(logging.CRITICAL)  # torch's launcher tells in many lines what is told in one below
    with tempfile.TemporaryDirectory(prefix="trnt-") as told:
        static = machines.endpoint is not None
        config = LaunchConfig(
            min_nodes=machines.nnodes,
            max_nodes=machines.nnodes,
            nproc_per_node=machines.nproc,
            run_id="trnt",
            rdzv_backend="static" if static else "c10d",
            rdzv_endpoint=machines.endpoint or "127.0.0.1:0",
            rdzv_configs={"rank": machines.node_rank} if static else {"is_host": True},
            local_addr=None if static else "127.0.0.1",
            max_restarts=0,
            logs_specs=rank_logs(logs, Path(told)),
            shutdown_timeout=PATIENCE_S,
        )
        try:
            elastic_launch(config, sys.executable)("-m", "trnt", *words)
        except SignalException as stopped:
            if failed := first_failure(Path(told), {}):
                raise told_error(failed, logs) from None
            return errors.INTERRUPTED if stopped.sigval == signal.SIGINT else errors.TERMINATED
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            failed = first_failure(Path(told), codes)
            if failed is None:  # they left by themselves after a signal of their own
                return max(codes.values())
            raise told_error(failed, logs) from None
        finally:
            logging.disable(logging.NOTSET)
            del os.environ[LOGS]
    return errors.OK


def rank_logs(logs: Path, told: Path) -> Any:
    """torch's seam for where processes write: process 0 here, the others in `logs`, failures in `told`."""
    from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

    class RankLogs(LogsSpecs):
        def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
            found = LogsDest()
            for local, env in envs.items():
                rank = int(env["RANK"])
                for stream, paths in (("stdout", found.stdouts), ("stderr", found.stderrs)):
                    paths[local] = "" if rank == 0 else str(logs / f"rank-{rank}.{stream}.log")
                found.error_files[local] = env[ERROR_FILE] = str(told / f"{rank}.json")
            return found

        @property
        def root_log_dir(self) -> str:
            return str(logs)

    return RankLogs()


def joined_a_launcher() -> bool:
    """Whether this process is one of several that `start` began; then its messages have a file, and it dies with it."""
    folder = os.environ.get(LOGS)
    if folder is None:
        return False
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() == 1:  # it was gone before the call
            os.kill(os.getpid(), signal.SIGTERM)
    if os.environ.get("RANK") == "0":
        console.keep(log_of(Path(folder), 0))
    return True


def tell(error: TrntError, traceback: str) -> bool:
    """Leave a failure for `start`, which shows the first one. False when nobody started this process."""
    path = os.environ.get(ERROR_FILE)
    if path is None or LOGS not in os.environ:
        return False
    mine = {"cause": error.cause, "fix": error.fix, "exit_code": error.exit_code, "at": time.time()}
    extra = {"py_callstack": traceback, "timestamp": str(int(time.time()))}
    half = Path(f"{path}.half")  # the launcher may end this process while it writes, and then reads the file
    half.write_text(json.dumps({"message": {"message": error.cause, "extraInfo": extra}, "trnt": mine}))
    half.replace(path)
    return True


def first_failure(told: Path, codes: dict[int, int]) -> tuple[int, TrntError] | None:
    """(process, what happened to it) of the first that failed. A kill from outside comes before what followed it.

    codes: the exit codes of processes that failed; negative is the number of a signal.
    """
    for rank, code in sorted(codes.items()):
        if code < 0 and -code != signal.SIGTERM:
            name = signal.Signals(-code).name
            killed = f"killed by {name}" + (" (by the kernel, if memory ran out)" if name == "SIGKILL" else "")
            return rank, TrntError(killed, "run again: the run goes on from its last checkpoint")
    found = []
    for path in told.glob("*.json"):
        if (mine := json.loads(path.read_text()).get("trnt")) is not None:
            found.append((mine["at"], int(path.stem), TrntError(mine["cause"], mine["fix"], mine["exit_code"])))
    if found:
        _, rank, error = min(found, key=lambda item: item[0])
        return rank, error
    bad = {rank: code for rank, code in codes.items() if code not in (errors.INTERRUPTED, errors.TERMINATED)}
    if not bad:
        return None
    rank = min(bad)
    return rank, TrntError(f"ended with exit code {bad[rank]}", "look at its log")


def told_error(failed: tuple[int, TrntError], logs: Path) -> TrntError:
    """The one line that is shown for a failed process."""
    rank, error = failed
    return TrntError(f"process {rank}: {error.cause} (log: {log_of(logs, rank)})", error.fix, error.exit_code)
