"""The roofline as a picture: each case at its FLOP per byte, below what the machine's products and copies allow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLOURS = ("#08519c", "#cb181d", "#238b45", "#6a51a3")


def draw(found: Mapping[str, Any], path: Path) -> int:
    """Write the picture, its format by the name's ending; how many cases are on it: those that compute something."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in found["cases"] if row["flops"] and not row["interpreted"]]
    figure = Figure(figsize=(9, 6), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    flops = max((row["peak_flops_per_s"] for row in rows), default=1.0)
    copied = max((row["peak_bytes_per_s"] for row in rows), default=1.0)
    at = [row["flops"] / row["bytes"] for row in rows]
    ridge = flops / copied
    low, high = min([*at, ridge]) / 3, max([*at, ridge]) * 6
    roof = [low * copied / 1e9, flops / 1e9, flops / 1e9]
    axes.loglog([low, ridge, high], roof, color="#444444", label="this machine")
    kernels = sorted({row["kernels"] for row in rows})
    for number, name in enumerate(kernels):
        mine = [(x, row) for x, row in zip(at, rows, strict=True) if row["kernels"] == name]
        speeds = [row["flops_per_s"] / 1e9 for _, row in mine]
        axes.loglog([x for x, _ in mine], speeds, "o", color=COLOURS[number % len(COLOURS)], label=name)
    above: list[tuple[float, float]] = []
    for name in sorted({row["name"] for row in rows}):
        same = [(x, row["flops_per_s"] / 1e9) for x, row in zip(at, rows, strict=True) if row["name"] == name]
        below = name.endswith("-backward")  # a forward and its backward lie near each other
        x, y = (min if below else max)(same, key=lambda point: point[1])
        crowded = any(x / 3 < left <= x and y / 1.5 < up < y * 1.5 for left, up in above)
        shift, side = ((8, -3), "left") if crowded and not below else ((0, -14 if below else 7), "center")
        axes.annotate(name, (x, y), xytext=shift, textcoords="offset points", ha=side, fontsize=8)
        if not below:
            above.append((x, y))
    axes.set_xlim(low, high)
    axes.set_xlabel("FLOP per byte that has to be moved")
    axes.set_ylabel("GFLOP/s")
    machine = found["machine"]
    where = machine.get("gpu", machine["cpu"])
    axes.set_title(f"{found['model']} on {where}, {machine['threads']} threads", fontsize=10)
    axes.grid(alpha=0.3, which="both")
    axes.legend(loc="lower right")
    figure.savefig(path)
    return len(rows)
