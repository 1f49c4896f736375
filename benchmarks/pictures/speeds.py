"""Pictures of speed: more workers, and beside PyTorch."""

from __future__ import annotations

from pathlib import Path

from benchmarks.pictures.canvas import COLORS, INK, canvas, write
from benchmarks.pictures.reports import number, origin, tables

_EXCHANGES = {
    "Allreduce": "Allreduce",
    "parameter server 1:1": "a server per worker",
    "parameter server 2:1": "two servers per worker",
}


def scaling(path: Path) -> None:
    """Draw the efficiency over the number of workers: measured as points, the model as lines."""
    measured, model = tables("scaling").values()
    with canvas("scaling") as figure:
        axes = figure.add_subplot()
        axes.axhline(1, color=INK, linewidth=1, linestyle="--")
        for color, (name, label) in zip(COLORS, _EXCHANGES.items()):
            line = [
                (_workers(row["model"]), number(row["efficiency"]))
                for row in model
                if row["model"].startswith(f"{name},")
            ]
            points = [
                (_workers(row["measured"]), number(row["of no exchange"]))
                for row in measured
                if row["measured"].startswith(f"{name},")
            ]
            axes.plot(*zip(*line), color=color, label=label)
            axes.plot(*zip(*points), "o", color=color)
        axes.set_xscale("log", base=2)
        ticks = (1, 2, 4, 8, 16, 32, 64)
        axes.set_xticks(ticks, labels=[str(tick) for tick in ticks])
        axes.set(xlabel="workers", ylabel="share of ideal scaling", ylim=(0, 1.05))
        axes.legend(loc="lower left")
        title = "Scaling of ResNet18: measured beside no exchange (points), the model (lines)"
        write(figure, path, title, origin("scaling"))


def _workers(name: str) -> float:
    return number(name.rpartition(",")[2])


def speed(path: Path) -> None:
    """Draw how many times as fast as PyTorch backbones and heads are, in the same run."""
    bars: list[tuple[str, float]] = []
    for heading, table in tables("backbone").items():
        network = heading.split(",")[0]
        rows = {row["backbone"]: row for row in table}
        bars.append((f"{network}, float32", number(rows["ours"]["× pytorch"])))
        bars.append((f"{network}, bfloat16", number(rows["bfloat16"]["× pytorch bfloat16"])))
    for heading, table in tables("head").items():
        classes, ratio = heading.split(", ratio")[0], heading.split(", ")[1]
        if not heading.endswith("threads=2"):
            continue
        rows = {row["head"]: row for row in table}
        part = "all" if ratio == "ratio 1" else "a tenth"
        bars.append((f"head, {classes}, {part}", number(rows["pytorch"]["÷ ours"])))
    with canvas("speed", height=2.8) as figure:
        axes = figure.add_subplot()
        names, ratios = zip(*reversed(bars))
        is_head = [name.startswith("head") for name in names]
        colors = [COLORS[1] if head else COLORS[0] for head in is_head]
        drawn = axes.barh(names, ratios, color=colors, height=0.62)
        axes.bar_label(drawn, [f"{ratio:.2f} ×" for ratio in ratios], padding=4, color=INK)
        axes.axvline(1, color=INK, linewidth=1.5)
        axes.set(xlabel="times as fast as PyTorch", xlim=(0, 1.25 * max(ratios)))
        axes.grid(visible=False, axis="y")
        title = "Training steps on two processors, times as fast as PyTorch 2.13 in the same run"
        write(figure, path, title, origin("backbone")._replace(source="backbone.md and head.md"))
