"""The pictures: what is learned, how fast, and the drawn faces."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator
from PIL import Image

from benchmarks import measure
from benchmarks.pictures.canvas import (
    COLORS,
    INK,
    MARKS,
    Provenance,
    canvas,
    number,
    origin,
    result,
    tables,
    write,
)
from data.decoding import decode_rgb
from data.drawn.face_set import draw_identity

_POINT = re.compile(r"^(\w+), seed (\d+), after ([\d.]+) s$")
_EXCHANGES = {
    "Allreduce": "Allreduce",
    "parameter server 1:1": "a server per worker",
    "parameter server 2:1": "two servers per worker",
}
_PEOPLE, _IMAGES, _WHITE = 4, 9, 255
_GAP = 4
_QUALITY = 80


def quick_start(path: Path) -> None:
    """Draw loss and accuracy of ``make train`` over its updates."""
    found = result("quick-start")
    updates, accuracies, deviations = np.array(found["verification"]).T
    with canvas("quick-start", width=6.2, height=2.9) as figure:
        left, right = figure.subplots(1, 2)
        left.plot(*zip(*found["loss"]), linewidth=1.2)
        left.set(xlabel="update", title="loss of training", ylim=(0, None))
        band = accuracies - deviations, np.minimum(accuracies + deviations, 1)
        right.fill_between(updates, *band, color=COLORS[0], alpha=0.2, linewidth=0)
        right.plot(updates, accuracies, "o-", markersize=3.5, linewidth=1.5)
        right.axhline(0.5, color=INK, linewidth=1, linestyle="--")
        right.annotate("chance", (updates[-1], 0.5), (0, 4), textcoords="offset points", ha="right")
        right.set(xlabel="update", title="accuracy on unseen people", ylim=(0.45, 1))
        write(figure, path, "The quick start: loss and accuracy by update", _of_quick_start())


def embeddings(path: Path) -> None:
    """Draw the embeddings of unseen people before and after training, in two dimensions."""
    found = result("quick-start")
    people = np.array(found["people"])
    with canvas("embeddings", width=6.2, height=3.4) as figure:
        panels = figure.subplots(1, 2)
        for axes, when in zip(panels, ("before", "after")):
            points = np.array(found[when])
            for place, person in enumerate(np.unique(people)):
                axes.plot(
                    *points[people == person].T,
                    MARKS[place % len(MARKS)],
                    color=COLORS[place % len(COLORS)],
                    markersize=4.5,
                    alpha=0.85,
                    markeredgewidth=0,
                )
            share = found[f"neighbors_{when}"]
            title = f"{when} training: {share:.0%} of nearest\nneighbors are the same person"
            axes.set(title=title, xticks=[], yticks=[])
            axes.grid(visible=False)
            for spine in axes.spines.values():
                spine.set_visible(True)
        title = f"Embeddings of {len(np.unique(people))} unseen drawn people, by t-SNE"
        write(figure, path, title, _of_quick_start())


def _of_quick_start() -> Provenance:
    found = result("quick-start")
    return Provenance("docs/results/quick-start.json", found["machine"], found["commit"])


def cifar10(path: Path) -> None:
    """Draw the validation accuracy on CIFAR-10 after each epoch, ours and PyTorch's."""
    (table,) = tables("learning").values()
    curves: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in table:
        point = number(row["epoch"]), number(row["validation accuracy"])
        curves[row["model"]].append(point)
    models = [name for name in curves if "PyTorch" not in name]
    with canvas("cifar10") as figure:
        axes = figure.add_subplot()
        for name, points in curves.items():
            model, _, other = name.partition(" in ")
            color = COLORS[models.index(model)]
            form, size = ("X", 9) if other else ("o-", 6)
            axes.plot(*zip(*points), form, markersize=size, color=color, label=name)
        axes.set(xlabel="epoch", ylabel="accuracy on the validation images", ylim=(0.3, 0.8))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="lower right")
        write(figure, path, "CIFAR-10: accuracy after the first epochs", origin("learning"))


def schemes(path: Path) -> None:
    """Draw the accuracy of the four schemes over time, on workers of unequal speed."""
    curves: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in result("schemes"):
        match = _POINT.match(row["name"])
        if match:
            curves[match[1], match[2]].append((float(match[3]), row["value"]))
    names = list(dict.fromkeys(name for name, _ in curves))
    with canvas("schemes") as figure:
        axes = figure.add_subplot()
        for (name, seed), points in curves.items():
            color, label = COLORS[names.index(name)], name if seed == "1" else None
            axes.plot(*zip(*points), color=color, linewidth=1.8, label=label)
            axes.plot(*points[-1], "o", color=color, markersize=6)
        axes.axhline(0.97, color=INK, linewidth=1, linestyle="--")
        axes.set(xlabel="seconds", ylabel="accuracy on the validation images", ylim=(0.8, 1))
        axes.legend(loc="lower right")
        title = "MNIST with two workers four times as fast as two others, one epoch"
        write(figure, path, title, origin("grouping")._replace(source="docs/results/schemes.json"))


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


def drawn_faces(path: Path) -> None:
    """Draw the first people of the set of ``make train``, as a JPEG."""
    rows = []
    for person in range(_PEOPLE):
        tiles = [decode_rgb(one) for one in draw_identity(person, images=_IMAGES)]
        sides = (0, _GAP), (0, _GAP), (0, 0)
        framed = [np.pad(tile, sides, constant_values=_WHITE) for tile in tiles]
        rows.append(np.concatenate(framed, axis=1))
    sheet = np.concatenate(rows)[:-_GAP, :-_GAP]
    machine = measure.machine().splitlines()[0].removeprefix("- processor: ")
    comment = f"drawn by data.drawn; machine: {machine}; commit: {measure.commit()}".encode()
    Image.fromarray(sheet).save(path, quality=_QUALITY, comment=comment)
