"""`trnt bench` from its options to its result: what is asked is checked before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trnt import console
from trnt.benching import names, report
from trnt.checkpoint.written import refuse_existing
from trnt.errors import UsageError, unknown
from trnt.models import registry

MOST_EXPERTS = 64  # unless --experts says more: 128 of Qwen3-30B-A3B's need 6 GiB with gradients and reference
PICTURES = (".png", ".svg", ".pdf")


@dataclass
class Found:
    """What a run of the benchmark came to."""

    result: dict[str, Any]
    said: list[str] = field(default_factory=list)
    worse: list[str] = field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """Cases whose results are not the reference's."""
        return [f"{row['name']} ({row['kernels']})" for row in self.result["cases"] if not row["correct"]]

    @property
    def good(self) -> bool:
        return not self.wrong and not self.worse

    def as_json(self) -> dict[str, Any]:
        """For programs: what --save keeps, and what a comparison found."""
        return {**self.result, "compared": {"slower": self.worse, "said": self.said}}

    def text(self) -> str:
        """For people."""
        machine, rows = self.result["machine"], self.result["cases"]
        rates = max(rows, key=lambda row: row["peak_flops_per_s"])
        where = machine.get("gpu", machine["cpu"])
        head = (
            f"{where}, {machine['threads']} threads, torch {machine['torch']}: products "
            f"{rates['peak_flops_per_s'] / 1e9:,.0f} GFLOP/s, copy {rates['peak_bytes_per_s'] / 1e9:,.0f} GB/s "
            f"({self.result['model']}, {rates['dtype']})"
        )
        lines = [head, report.table(rows), *self.said]
        lines += [f"slower: {what}" for what in self.worse]
        lines += [f"WRONG: {what} does not compute what the reference computes" for what in self.wrong]
        return "\n".join(lines)


def entry_of(model: str, experts: int | None) -> registry.ModelEntry:
    """The model with its experts cut. Raises UsageError."""
    entry = registry.get(model)
    if experts is None and entry.size.num_experts > MOST_EXPERTS:
        experts = MOST_EXPERTS
    return entry.cut(None, experts)


def bench(
    cases: Sequence[str],
    *,
    model: str,
    experts: int | None,
    tokens: int | None,
    dtype: str,
    kernels: str | None,
    device: str,
    seconds: float,
    save: Path | None = None,
    compare: Path | None = None,
    plot: Path | None = None,
    force: bool = False,
) -> Found:
    """Run the cases. Raises UsageError or TrntError for what cannot be asked, before anything is measured."""
    entry, chosen = what(cases, model, experts, dtype)
    if device not in ("auto", "cpu", "cuda", "neuron"):
        raise unknown("device", device, ("auto", "cpu", "cuda", "neuron"))
    if not seconds > 0:
        raise UsageError(f"--seconds {seconds}: more than none", "for example --seconds 2")
    then = report.load(compare) if compare else None
    for path in (save, plot):
        if path is not None:
            refuse_existing(path, force=force, what="file")
            if not path.parent.is_dir():
                raise UsageError(f"there is no folder {path.parent}", "make it, or name another file")
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise UsageError(f"--plot {plot}: no picture's ending", f"use one of {', '.join(PICTURES)}")

    from trnt.benching import run
    from trnt.kernels.choose import has_nki

    kind = run.ready(device)
    asked = [name.strip() for name in kernels.split(",") if name.strip()] if kernels else []
    pairs = [(name, by) for name in chosen for by in names.computed_by(name, asked, kind, has_nki=has_nki())]
    if not pairs:
        raise UsageError(f"{kernels} computes none of {', '.join(chosen)}", "'trnt bench --list' says who has what")
    if kind == "cpu":
        run.check_memory(entry, chosen, tokens)
    rows = []
    with console.progress("bench", len(pairs)) as ticker:
        for row in run.results(entry, pairs, kind, dtype, tokens, seconds):
            rows.append(row)
            ticker.advance(1, f"{row['name']} ({row['kernels']})")
    found = Found(report.result(run.machine(kind), entry.name, rows))
    if kind != "cpu":
        found.said.append(f"this command was not run on {kind} hardware by trnt's authors")
    if save is not None:
        report.save(save, found.result, force=force)
        found.said.append(f"kept in {save}")
    if plot is not None:
        from trnt.benching.plot import draw

        found.said.append(f"{draw(found.result, plot)} cases drawn in {plot}")
    if then is not None:
        said, found.worse = report.compare(found.result, then)
        found.said += said
    return found


def what(cases: Sequence[str], model: str, experts: int | None, dtype: str) -> tuple[registry.ModelEntry, list[str]]:
    """The model and the cases that are meant. Raises UsageError."""
    entry = entry_of(model, experts)
    chosen = names.chosen(cases, experts=bool(entry.size.num_experts))
    if dtype not in names.DTYPES:
        raise unknown("dtype", dtype, names.DTYPES)
    return entry, chosen


def predict(
    cases: Sequence[str], *, model: str, experts: int | None, tokens: int | None, dtype: str, generation: str
) -> list[dict[str, Any]]:
    """What the NKI kernels of the cases would cost on one core of a generation. Raises UsageError or TrntError."""
    from trnt.kernels import hardware

    entry, chosen = what(cases, model, experts, dtype)
    if generation not in hardware.CORES:
        raise unknown("generation", generation, hardware.CORES)
    able = [name for name in chosen if "nki" in names.CASES[name].kernels]
    if (cases and len(able) < len(chosen)) or not able:
        without = next(name for name in chosen if name not in able)
        raise UsageError(f"{without} has no NKI kernel to predict", "'trnt bench --list' says which have one")

    from trnt.benching import run

    run.ready("cpu")
    run.check_memory(entry, able, tokens)
    from trnt.benching import predict as predicting  # loads the kernels: after the device is chosen

    rows = []
    with console.progress("predict", len(able)) as ticker:
        for row in predicting.rows(entry, able, generation, dtype, tokens):
            rows.append(row)
            ticker.advance(1, row["name"])
    return rows


def predicted_text(rows: list[dict[str, Any]]) -> str:
    """For people."""
    from trnt.benching import predict

    first = rows[0]
    head = (
        f"predicted for one core of {first['generation']} ({first['sizes']['model']}, {first['sizes']['num_experts']} "
        f"experts, {first['dtype']}), not measured: not run on hardware"
    )
    return f"{head}\n{predict.table(rows)}"
