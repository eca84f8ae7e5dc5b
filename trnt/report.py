"""What a run tells: the console line, metrics.jsonl, TensorBoard events, loss.png and the summary.

One row per step, written at once, so that a killed run keeps what it had. A resumed run first drops the rows of
steps that are trained again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trnt import device, host_memory

device.ensure()

from torchtitan.components.metrics import MetricsProcessor

from trnt import console
from trnt.runs import read_rows


class Report(MetricsProcessor):
    """torchtitan's metrics seam, writing trnt's files. Only process 0 writes."""

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        log_freq: int = 1
        enable_tensorboard: bool = True

    def __init__(self, config: Config, *, dump_folder: str, pp_schedule: str = "1F1B", **kwargs: Any) -> None:
        super().__init__(config, dump_folder=dump_folder, pp_schedule=pp_schedule, **kwargs)
        self.writes = dist.get_rank() == 0  # the trainer tells every process the loss, whichever stage knows it
        self.folder = Path(dump_folder)
        self.rows: list[dict[str, Any]] = []
        self.steps = 0
        self.trained = 0
        self._rate = device.MatmulRate() if device.ensure() == "cpu" else None
        self._ticker: console.Ticker | None = None
        self._started = time.perf_counter()

    @property
    def path(self) -> Path:
        """metrics.jsonl of this run."""
        return self.folder / "metrics.jsonl"

    @contextmanager
    def showing(self, step: int, steps: int) -> Iterator[None]:
        """For the time of training: progress on stderr; earlier rows up to `step` are kept, later ones dropped."""
        self.steps = steps
        self.rows = [row for row in read_rows(self.path) if row["step"] <= step]
        if self.writes:
            self.path.write_text("".join(json.dumps(row) + "\n" for row in self.rows), encoding="utf-8")
        self.time_last_log = self._started = time.perf_counter()
        self.ntokens_since_last_log = 0
        with console.progress("training", total=steps, unit="steps") as ticker:
            self._ticker = ticker
            ticker.update(step)
            yield
        self._ticker = None

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        """One optimizer step's figures; see docs/train.md for every key's meaning and unit."""
        extra = dict(extra_metrics or {})
        seconds = time.perf_counter() - self.time_last_log
        dims = self.parallel_dims
        # every process of a data-parallel rank read the same rows
        tokens_per_s = self.ntokens_since_last_log * dims.dp_replicate * dims.dp_shard / seconds
        flops = self.num_flops_per_token * tokens_per_s
        lrs = [value for key, value in extra.items() if key.startswith("lr/")]
        row = {
            "step": step,
            "loss": global_avg_loss,
            "loss_max": global_max_loss,
            "grad_norm": grad_norm,
            "lr": max(lrs) if lrs else None,
            "tokens": extra.get("n_tokens_seen"),
            "seconds": seconds,
            "tokens_per_s": tokens_per_s,
            "flops_per_s": flops,
            "of_peak": flops / dims.world_size / (self._rate.now() if self._rate else self.gpu_peak_flops),
            "memory_bytes": host_memory.used_bytes(),
            "memory_peak_bytes": host_memory.peak_bytes(),
            "data_wait_s": sum(self.data_loading_times),
            **{key: value for key, value in extra.items() if key.startswith("moe/")},
        }
        self.rows.append(row)
        self.trained += 1
        if self.writes:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            self.logger.log({key: value for key, value in row.items() if value is not None and key != "step"}, step)
            self._show(row)
        self.ntokens_since_last_log = 0
        self.data_loading_times.clear()
        self.time_last_log = time.perf_counter()

    def _show(self, row: dict[str, Any]) -> None:
        left = (self.steps - row["step"]) * row["seconds"]
        detail = (
            f"step {row['step']}/{self.steps}  loss {row['loss']:.4f}  {row['tokens_per_s']:,.0f} tok/s  "
            f"{row['flops_per_s'] / 1e9:,.0f} GFLOP/s  {console.human_bytes(row['memory_bytes'])}  "
            f"ETA {console.human_time(left)}"
        )
        if self._ticker is not None:
            self._ticker.update(row["step"], detail)

    def seconds(self) -> float:
        """Wall seconds since training began in this process."""
        return time.perf_counter() - self._started

    def picture(self) -> Path | None:
        """Draw loss.png from metrics.jsonl; None when there are fewer than two steps."""
        if not self.writes or len(self.rows) < 2:
            return None
        return draw_loss(self.rows, self.folder / "loss.png")


def draw_loss(rows: list[dict[str, Any]], path: Path) -> Path:
    """The loss of every step and its running mean over about a twentieth of the steps, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = [row["step"] for row in rows]
    losses = [row["loss"] for row in rows]
    window = max(1, len(losses) // 20)
    mean = [sum(losses[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(losses))]
    figure = Figure(figsize=(8, 4.5), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(steps, losses, color="#9ecae1", linewidth=1, label="loss")
    axes.plot(steps, mean, color="#08519c", linewidth=2, label=f"mean of {window}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
    return path
