"""The comparison of several runs: curves in common charts, what differs, what came out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from evaluation.report import elements, figures
from evaluation.report.elements import Strong
from evaluation.report.run_files import RunFiles, number
from evaluation.report.run_page import grouped, last_loss, rate, tar_at_far

# Is different in every run, and its name says so.
_LEFT_OUT = frozenset(("models_root",))
_MISSING = object()


def write_comparison(runs: Sequence[RunFiles]) -> str:
    """Return a page about several runs."""
    runs = with_names(runs)
    names = [run.name for run in runs]
    differences = _differences(runs)
    body = [
        elements.section("Final figures", elements.table(["", *names], _final_rows(runs))),
        elements.section(
            "Differences in configuration",
            elements.table(["option", *names], differences)
            or '<p class="muted">None: all options are the same.</p>',
        ),
        elements.section(
            "Accuracy", elements.figures([*figures.of_accuracy(runs), *figures.of_scores(runs)])
        ),
        elements.section("Training", elements.figures(figures.of_training(runs))),
        "<footer>Made from the files of the runs by python -m evaluation.report.</footer>",
    ]
    title = " · ".join(names)
    return elements.page("Comparison of runs", title, f"{len(runs)} runs", body)


def with_names(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """Each run once, with a name that no other has: that of its folder, or its path."""
    kept = list({run.folder: run for run in runs}.values())
    names = [run.name for run in kept]
    return [
        replace(run, name=str(run.folder)) if names.count(run.name) > 1 else run for run in kept
    ]


def _differences(runs: Sequence[RunFiles]) -> list[list[str]]:
    options = dict.fromkeys(name for run in runs for name in run.config)
    rows = []
    for option in options:
        found = [run.config.get(option, _MISSING) for run in runs]
        if option not in _LEFT_OUT and any(one != found[0] for one in found):
            rows.append([option, *(_said(one) for one in found)])
    return rows


def _said(value: Any) -> str:
    return "no such option" if value is _MISSING else elements.said(value)


def _final_rows(runs: Sequence[RunFiles]) -> list[list[str]]:
    rows: list[list[str]] = []
    for name in dict.fromkeys(name for run in runs for name in run.targets):
        lasts = [run.targets[name][-1] if name in run.targets else {} for run in runs]
        accuracies = [figures.accuracy(last) for last in lasts]
        largest = max((one.value for one in accuracies if math.isfinite(one.value)), default=0.0)
        shown = [
            Strong(one) if one.value == largest and len(runs) > 1 else str(one)
            for one in accuracies
        ]
        rows.append([f"accuracy {name}, 95 % interval", *shown])
        rows.append([f"best accuracy {name}", *(_best(run, name) for run in runs)])
        if any(key.startswith("tar_at_far") for last in lasts for key in last):
            rows.append([f"TAR@FAR {name}", *map(tar_at_far, lasts)])
        if any(name in run.scores for run in runs):
            rows.append([f"area under ROC {name}", *(_area(run, name) for run in runs)])
    rows.append(["loss of the last report", *map(last_loss, runs)])
    rows.append(["updates", *(f"{figures.last_update(run):,}" for run in runs)])
    rows.append(["images/s, median", *map(rate, runs)])
    rows.append(["time", *(str(figures.duration(run) or "–") for run in runs)])
    return rows


def _best(run: RunFiles, name: str) -> str:
    found = [number(record, "accuracy") for record in run.targets.get(name, ())]
    return grouped(max((value for value in found if math.isfinite(value)), default=math.nan), 4)


def _area(run: RunFiles, name: str) -> str:
    return f"{figures.analyze(name, run.scores[name]).area:.4f}" if name in run.scores else "–"
