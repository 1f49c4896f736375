"""Pictures of what is learned: the quick start, its embeddings, CIFAR-10, the four schemes."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from benchmarks.pictures.canvas import COLORS, INK, MARKS, Provenance, canvas, write
from benchmarks.pictures.reports import number, origin, result, tables

_POINT = re.compile(r"^(\w+), seed (\d+), after ([\d.]+) s$")


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
