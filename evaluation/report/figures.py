"""What a report says of runs, as numbers and as charts; of one run or of several in one chart.

Intervals are of 95 %. Those of a verification are Student's t of the mean over its ten folds, whose
standard deviation the run has written; those of a validation are Wilson's (1927) of the share of
images that are classified correctly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, Optional

import numpy as np

from evaluation.report import elements
from evaluation.report.charts import Numbers, Series, curves_of_rates, histograms, lines
from evaluation.report.run_files import VALIDATION, Record, RunFiles, column, number
from evaluation.verification.curves import FOLDS, Curve, roc
from runtime.stopwatch import PARTS

# Quantiles for 95 %: of the normal distribution, and of Student's t with FOLDS - 1 degrees.
_NORMAL, _STUDENT = 1.960, 2.262
assert FOLDS == 10
_UPDATE = "update"


class Interval(NamedTuple):
    """A number and its interval; NaN where that is not known."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if not math.isfinite(self.value):
            return "–"
        if not math.isfinite(self.low):
            return f"{self.value:.4f}"
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


def accuracy(record: Record) -> Interval:
    """The accuracy of a verification or validation, with its interval."""
    names = ("accuracy", "accuracy_std", "total")
    value, deviation, total = (number(record, name) for name in names)
    if not 0 <= value <= 1:
        return Interval(math.nan, math.nan, math.nan)
    # The deviation that is written has the divisor FOLDS.
    center, half = value, _STUDENT * deviation / math.sqrt(FOLDS - 1)
    if total > 0:
        square = _NORMAL**2 / total
        center = (value + square / 2) / (1 + square)
        variance = value * (1 - value) / total + square / total / 4
        half = _NORMAL * math.sqrt(variance) / (1 + square)
    return Interval(value, max(center - half, 0.0), min(center + half, 1.0))


def best(records: Sequence[Record]) -> Optional[Record]:
    """Return the record of the largest accuracy; None if no accuracy is a number."""
    known = [record for record in records if math.isfinite(number(record, "accuracy"))]
    return max(known, key=lambda record: float(record["accuracy"]), default=None)


def curve_of(scores: Numbers) -> Curve:
    """Return the ROC of the scores [P, 2] of a set; there are pairs of both kinds."""
    return roc(scores[:, 0], scores[:, 1] == 1)


def time_shares(run: RunFiles) -> dict[str, float]:
    """The share of each part of an update in the time of all, and the rest; empty without any.

    As in the log, the first report counts only if there is no other: it compiles.
    """
    records = run.training[1:] or run.training
    rates = column(records, "images_per_second")
    known = rates > 0
    if not known.any():
        return {}
    # An update takes as much longer as its rate is lower.
    found = {
        part: float(np.average(column(records, part)[known], weights=1 / rates[known]))
        for part in PARTS
    }
    found = {part: share for part, share in found.items() if share > 0}
    return {**found, "rest": max(0.0, 1 - sum(found.values()))}


def images_per_second(run: RunFiles) -> float:
    """The median of the reports, without the first, which compiles; NaN without any."""
    rates = column(run.training[1:] or run.training, "images_per_second")
    return float(np.median(rates[np.isfinite(rates)])) if np.isfinite(rates).any() else math.nan


def duration(run: RunFiles) -> Optional[timedelta]:
    """The time of all parts, each from its start to its last record."""
    records = [*run.training, *(one for found in run.targets.values() for one in found)]
    stamps = [(number(one, "time"), False) for one in records]
    stamps += [(number(part, "time"), True) for part in run.parts]
    known = sorted(stamp for stamp in stamps if math.isfinite(stamp[0]))
    spent = [later - time for (time, _), (later, starts) in zip(known, known[1:]) if not starts]
    return timedelta(seconds=round(sum(spent))) if spent else None


def last_update(run: RunFiles) -> int:
    """The last update of which there is a report."""
    records = [*run.training[-1:], *(records[-1] for records in run.targets.values())]
    return max((int(record[_UPDATE]) for record in records), default=0)


def of_training(runs: Sequence[RunFiles]) -> list[str]:
    """The charts of loss, learning rate and images/s."""
    marks = [float(part[_UPDATE]) for part in runs[0].parts[1:]] if len(runs) == 1 else []
    resumed = "Dotted lines: where the run went on." if marks else ""
    titles = {
        "loss": ("loss", "Loss", "mean loss", resumed),
        "lr": ("learning-rate", "Learning rate", "learning rate", ""),
        "images_per_second": (
            "throughput", "Throughput", "images/s",
            f"All ranks together, without verifications and saves. {resumed}",
        ),
    }  # fmt: skip
    pictures = []
    for name, (place, title, y, note) in titles.items():
        series = [_series(run.name, color, run.training, name) for color, run in enumerate(runs)]
        if any(len(one.x) for one in series):
            svg = lines(y, series, from_zero=name != "loss", marks=marks)
            pictures.append(_figure(place, title, svg, series, note))
    return pictures


def of_accuracy(runs: Sequence[RunFiles]) -> list[str]:
    """A chart of each verification set, or of the validation, over the updates."""
    pictures = []
    for index, (name, curves) in enumerate(_charts(runs, [run.targets for run in runs])):
        is_validation = name == VALIDATION
        title = "Validation" if is_validation else f"Verification of {name}"
        kind = "Wilson" if is_validation else "Student's t over ten folds"
        note = f"Bands: 95 % intervals ({kind})."
        shown = [_series(*curve, "accuracy") for curve in curves]
        losses = [_series(*curve, "loss") for curve in curves]
        if is_validation and len(runs) == 1:
            records = runs[0].targets[VALIDATION]
            shown.append(_series("training", 1, records, "training_accuracy"))
            losses.append(_series("training", 1, records, "training_loss"))
        svg = lines("accuracy", shown)
        pictures.append(_figure(f"accuracy-{index}", title, svg, shown, note))
        if is_validation:
            svg, title = lines("mean loss", losses), "Loss by epoch"
            pictures.append(_figure("validation-loss", title, svg, losses, "Over whole epochs."))
    return pictures


def of_scores(runs: Sequence[RunFiles]) -> list[str]:
    """ROC curves of the last verification, one chart per set; of one run also histograms."""
    pictures = []
    note = "Pairs of the last verification."
    for index, (name, found) in enumerate(_charts(runs, [run.scores for run in runs])):
        curves = [curve_of(scores) for *_, scores in found]
        shown = [
            Series(label, place, one.far, one.tar) for (label, place, _), one in zip(found, curves)
        ]
        # The rate of one pair, as a power of ten.
        most = max(one.different for one in curves)
        svg = curves_of_rates(shown, 10.0 ** math.floor(math.log10(1 / most)))
        title, dotted = f"ROC of {name}", f"{note} Dotted: chance."
        pictures.append(_figure(f"roc-{index}", title, svg, shown, dotted))
        if len(runs) == 1:
            ((_, _, scores),) = found
            same = scores[:, 1] == 1
            svg = histograms([scores[same, 0], scores[~same, 0]])
            legend = [("same person", 0), ("different people", 1)]
            pictures.append(_figure(f"scores-{index}", f"Scores of {name}", svg, legend, note))
    return pictures


def _figure(name: str, title: str, svg: bytes, series: Sequence[tuple[Any, ...]], note: str) -> str:
    legend = elements.legend({label: place for label, place, *_ in series})
    return elements.figure(name, title, "svg+xml", svg, note, legend)


def _charts(
    runs: Sequence[RunFiles], found: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, list[tuple[str, int, Any]]]]:
    """Yield each set, and label, color and content of the curves of its chart.

    A run has the same color also where another one is missing.
    """
    for name in dict.fromkeys(name for one in found for name in one):
        of_runs = enumerate(zip(runs, found))
        yield name, [(run.name, place, one[name]) for place, (run, one) in of_runs if name in one]


def _series(label: str, place: int, records: Sequence[Record], name: str) -> Series:
    """Return the numbers of one name that are known; of accuracies with their intervals."""
    values = column(records, name)[:, np.newaxis]
    if name == "accuracy":
        values = np.array([accuracy(record) for record in records], np.float64).reshape(-1, 3)
    known = np.isfinite(values[:, 0])
    return Series(label, place, column(records, _UPDATE)[known], *values[known].T)
