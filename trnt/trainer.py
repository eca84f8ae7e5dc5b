"""The core trainer: torchtitan's Trainer, plus guards, signals and an exact resume.

Set up (`__init__`, torchtitan's), then per step: forward and backward, check, optimizer, report, save. A loss or
gradient that is not finite stops the run before the optimizer touches a weight. Ctrl-C and SIGTERM finish the step,
save and stop.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import Any

import torch

from trnt import device, host_memory

device.ensure()

import torch.distributed as dist
import torchtitan.trainer as titan
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.distributed import utils as dist_utils
from torchtitan.models.common.decoder import Decoder
from torchtitan.models.common.moe import MoE

from trnt import console
from trnt.checkpoint.manager import Checkpointer
from trnt.errors import TrntError
from trnt.kernels.moe import Router
from trnt.kernels.swap import own_gradients
from trnt.optim.container import Optimizers
from trnt.parallel import context, pipeline
from trnt.parallel.apply import sum_gradients
from trnt.parallel.clip import clip
from trnt.parallel.seeded import same_weights
from trnt.report import Report

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


@dataclass
class Stop:
    """Whether a signal asked the run to end, and which."""

    signum: int | None = None

    @property
    def wanted(self) -> bool:
        return self.signum is not None


@contextmanager
def stop_on_signals() -> Iterator[Stop]:
    """The first Ctrl-C or SIGTERM is noted; the second acts at once. The handlers before are put back at the end."""
    stop = Stop()

    def note(signum: int, frame: FrameType | None) -> None:
        del frame
        stop.signum = signum
        for each, handler in before.items():
            signal.signal(each, handler)
        console.note(f"{signal.Signals(signum).name}: finishing this step, then saving (again to stop at once)")

    before: dict[int, Any] = {}
    try:
        for wanted in (signal.SIGINT, signal.SIGTERM):
            before[wanted] = signal.signal(wanted, note)
    except ValueError:  # not the main thread: whoever runs us there stops us differently
        before.clear()
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


class Trainer(titan.Trainer):
    """torchtitan's Trainer with trnt's step and loop; everything else is swapped in through its config."""

    @dataclass(kw_only=True, slots=True)
    class Config(titan.Trainer.Config):
        metrics: Report.Config = field(default_factory=Report.Config)
        checkpoint: Checkpointer.Config = field(default_factory=Checkpointer.Config)
        optimizer: Optimizers.Config = field(default_factory=Optimizers.Config)
        gradient_dtype: str = "fp32"
        """What one process without compile keeps the gradients of large weights in; elsewhere the weights' own."""
        init_from: str | None = None
        """A folder of weights to begin with, in place of random ones."""
        trim_memory: bool = False
        """Return unused heap memory before each step, for runs whose memory is short; the others keep it."""

    metrics_processor: Report
    optimizers: Optimizers
    stopped_by: int | None = None
    tokens_seen: int = 0
    """Input tokens of all processes so far; `ntokens_seen`, torchtitan's, are this process's since it began."""
    tokens_before: int = 0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        sum_gradients(self.model_parts)
        dims = self.parallel_dims
        self.cp_mesh = dims.get_optional_mesh("cp")
        self.pp_mesh = dims.get_optional_mesh("pp")
        if self.pp_mesh is not None:
            for part in self.model_parts:
                pipeline.make_masks(part, self.cp_mesh)
            pipeline.leave_no_trace(self.pp_schedule, self.model_parts, self.loss_fn)
        self.alone = dims.world_size == 1
        if self.alone and self.device.type == "cpu" and not config.compile.enable:
            for part in self.model_parts:
                reduced = config.gradient_dtype == "bf16"
                own_gradients(part, torch.bfloat16 if reduced else None, sparse=reduced)
        if self.device.type == "cpu" and not config.trim_memory:
            host_memory.keep_freed()
        self._moes = [m for part in self.model_parts for m in part.modules() if isinstance(m, MoE)]
        for router in self._routers():
            batches = self.gradient_accumulation_steps * self.num_pipeline_parallel_microbatches
            router.aux_weight = 1.0 / (batches * dims.dp_replicate * dims.dp_shard * dims.cp)

    def _routers(self) -> list[Router]:
        return [moe.router for moe in self._moes if isinstance(moe.router, Router)]

    def train(self) -> None:
        """Load what there is to resume, train to the last step or to a signal, saving on the way and at the end."""
        config = self.config
        self.checkpointer.load(step=config.checkpoint.load_step)
        first = self.step
        if config.init_from and not first:
            self._init_from(config.init_from)
        elif not first and not self.alone and isinstance(self.model_config, Decoder.Config):
            seed = config.debug.seed if config.debug.seed is not None else 0
            same_weights(self.model_parts, self.model_config, seed, config.training.dtype)
        if first:
            console.note(f"resumed at step {first}")
        with (
            stop_on_signals() as stop,
            self.metrics_processor.showing(first, config.training.steps),
            config.profiler.build(global_step=first, base_folder=config.dump_folder) as profiler,
        ):
            batches = self.batch_generator(self.dataloader)
            ending = self.step >= config.training.steps
            while not ending:
                self.step += 1
                self.gc_handler.run(self.step)
                if config.trim_memory:
                    host_memory.give_back()
                self.train_step(batches)
                # asked once: what ends the loop is saved
                ending = self._all_stop(stop) or self.step == config.training.steps
                self.checkpointer.save(self.step, last_step=ending)
                profiler.step()
                if self.step == first + 1:
                    timeout = timedelta(seconds=config.comm.train_timeout_seconds)
                    dist_utils.set_pg_timeouts(timeout=timeout, parallel_dims=self.parallel_dims)
        self.stopped_by = stop.signum

    def state_dict(self) -> dict[str, Any]:
        """The step and the tokens of all processes, so that a run may go on with another number of them."""
        return {"step": self.step, "ntokens_seen": self.tokens_seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step = state_dict["step"]
        self.tokens_seen = self.tokens_before = state_dict["ntokens_seen"]

    def _all_stop(self, stop: Stop) -> bool:
        """Whether a signal reached any process: they end at the same step, or the others would wait for ever."""
        if self.alone:
            return stop.wanted
        told = torch.tensor(stop.signum or 0, dtype=torch.int32, device=self.device)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        stop.signum = int(told) or None
        return stop.wanted

    def post_dataloading_process(self, input_dict: dict[str, torch.Tensor], labels: torch.Tensor) -> Any:
        """torchtitan's (inputs, labels, arguments of the model); with context parallelism this process's tokens.

        Document boundaries are those of whole rows: attention sees whole rows of some heads (`parallel/context.py`).
        """
        if self.cp_mesh is None and self.pp_mesh is None:
            return super().post_dataloading_process(input_dict, labels)
        found: dict[str, Any] = {name: context.part(x, self.cp_mesh) for name, x in input_dict.items()}
        if self.pp_mesh is None:  # the stages of a pipeline make their own (`parallel/pipeline.py`)
            found["attention_masks"] = self.model_parts[0].get_attention_masks(positions=input_dict["positions"])
        labels = context.part(labels, self.cp_mesh)
        self.ntokens_seen += labels.numel()
        return found.pop("input"), labels, found

    def pp_forward_backward_step(self, *, input_dict_mbs: Any, label_mbs: Any, global_valid_tokens: Any) -> Any:
        """The loss (), zero where the last stage is not; gradients are in the parameters.

        torch 2.13's schedules cut whole batches into microbatches themselves, where torchtitan hands them over cut.
        """
        joined = {name: torch.cat([batch[name] for batch in input_dict_mbs]) for name in input_dict_mbs[0]}
        inputs, labels, options = self.post_dataloading_process(joined, torch.cat(label_mbs))
        losses: list[torch.Tensor] = []
        with self.train_context():
            self.pp_schedule.step(
                *((inputs,) if self.pp_has_first_stage else ()),
                target=labels if self.pp_has_last_stage else None,
                losses=losses if self.pp_has_last_stage else None,
                return_outputs=False,
                loss_kwargs={"global_valid_tokens": global_valid_tokens},
                **options,
            )
        return torch.stack(losses).sum() if losses else torch.zeros((), device=self.device)

    def _init_from(self, path: str) -> None:
        """Replace the random weights by those of a checkpoint, in place."""
        from trnt.checkpoint.start import fill
        from trnt.opening import open_checkpoint

        layers = len(self.config.model_spec.model.layers)
        experts = self._moes[0].tokens_per_expert_E.numel() if self._moes else None
        opened = open_checkpoint(path)
        with opened.source:
            entry = opened.cut(layers, experts).entry
            for part in self.model_parts:
                state = {name: value for name, value in part.state_dict().items() if isinstance(value, torch.Tensor)}
                fill(state, opened.source, entry)
                part.load_state_dict(state, strict=False)

    def train_step(self, data_iterator: Iterator[Batch]) -> None:
        """One optimizer step over the global batch. Losses are sums divided by the global count of target tokens."""
        self.optimizers.zero_grad(set_to_none=True)
        lr = self.lr_schedulers.get_metrics()
        cuts = self.num_pipeline_parallel_microbatches
        batches = [next(data_iterator) for _ in range(self.gradient_accumulation_steps * cuts)]
        targets = torch.stack([(labels != IGNORE_INDEX).sum() for _, labels in batches]).sum().to(self.device)
        dims = self.parallel_dims
        if dims.dp_enabled:
            targets = dist_utils.dist_sum_tensor(targets, dims.get_mesh("batch"))
        targets = targets.clamp(min=1)

        losses = []
        for begin in range(0, len(batches), cuts):
            moved = [
                ({key: value.to(self.device) for key, value in inputs.items()}, labels.to(self.device))
                for inputs, labels in batches[begin : begin + cuts]
            ]
            if self.pp_mesh is None:
                ((inputs, labels),) = moved
                loss = self.forward_backward_step(input_dict=inputs, labels=labels, global_valid_tokens=targets)
            else:
                cut, wanted = ([pair[place] for pair in moved] for place in (0, 1))
                loss = self.forward_backward_step(input_dict=cut, labels=wanted, global_valid_tokens=targets)
            losses.append(loss.detach())
        local_loss = torch.stack(losses).sum()
        loss_mesh = dims.get_optional_mesh("loss") if dims.dp_cp_enabled else None
        loss_value = dist_utils.dist_sum(local_loss, loss_mesh)
        if self.pp_mesh is not None:  # only the last stage knows it
            loss_value = dist_utils.dist_sum(torch.tensor(loss_value, device=self.device), self.pp_mesh)
        self._refuse_non_finite("loss", loss_value)
        grad_norm = self._clip()
        self._refuse_non_finite("gradient norm", float(grad_norm))

        moe = self._moe_metrics()
        self.checkpointer.maybe_wait_for_staging()
        self.optimizers.step()
        self.lr_schedulers.step()
        tokens = torch.tensor(self.ntokens_seen, dtype=torch.int64, device=self.device)
        self.tokens_seen = self.tokens_before + int(dist_utils.dist_sum(tokens, loss_mesh))
        extra = {"n_tokens_seen": self.tokens_seen, **lr, **moe}
        self.metrics_processor.log(self.step, loss_value, loss_value, float(grad_norm), extra_metrics=extra)

    def _clip(self) -> torch.Tensor:
        """The global gradient norm; gradients are scaled to at most `training.max_norm`, on the way where it can be."""
        if self.alone:
            return self.optimizers.clip(self.config.training.max_norm)
        return clip(
            [p for part in self.model_parts for p in part.parameters()],
            self.config.training.max_norm,
            self.pp_mesh,
        )

    def _refuse_non_finite(self, what: str, value: float) -> None:
        """Stop before the optimizer when a number is NaN or infinite.

        Raises TrntError naming the step; the weights and the checkpoints are as they were after the step before.
        """
        if not math.isfinite(value):
            raise TrntError(
                f"the {what} of step {self.step} is {value}: stopped before the optimizer step, weights unchanged",
                "lower --lr, lengthen --warmup or check the data; resume from the last checkpoint",
            )

    def _moe_metrics(self) -> dict[str, float]:
        """How unevenly the experts were used in this step (1.0 = evenly), and the balance loss where there is one."""
        if not self._moes:
            return {}
        counts = [moe.tokens_per_expert_E for moe in self._moes]
        uneven = max(float(c.max() / c.mean().clamp(min=1e-9)) for c in counts)
        metrics = {"moe/busiest_expert": uneven}
        for moe, count in zip(self._moes, counts, strict=True):
            if moe.load_balance_coeff is None:  # torchtitan's own hook resets the counts of the others
                count.zero_()
        aux = [float(router.last_aux) for router in self._routers() if router.last_aux is not None]
        if aux:
            metrics["moe/aux_loss"] = sum(aux) / len(aux)
        return metrics
