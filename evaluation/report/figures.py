"""What a report says of runs, as numbers and as charts; of one run or of several in one chart.

Intervals are of 95 %. Those of a verification are Student's t of the mean over its ten folds, whose
standard deviation the run has written; those of a validation are Wilson's (1927) of the share of
images that are classified correctly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple, Optional

import numpy as np

from evaluation.folds import FOLDS, accuracies_of_folds, folds_of
from evaluation.report.charts import (
    Frame,
    Numbers,
    Picture,
    Series,
    curves_of_rates,
    histograms,
    lines,
)
from evaluation.report.run_files import VALIDATION, Record, RunFiles, column, number
from evaluation.verification.curves import Curve, area_under, equal_error_rate
from runtime.stopwatch import PARTS

REST = "rest"
# Quantiles for 95 %: of the normal distribution, and of Student's t with FOLDS - 1 degrees.
_NORMAL, _STUDENT = 1.960, 2.262
assert FOLDS == 10
_UPDATE = "update"
# A century.
_LONGEST_SECONDS = 3.2e9
_FOLDS_NOTE = "Bands: 95 % intervals of the mean over ten folds."


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


class Scores(NamedTuple):
    """What the scores of a verification set say beside its accuracy.

    Attributes:
        curve: true by false accept rate.
        area: under that curve.
        equal_error: the rate at which as many pairs are wrongly accepted as refused.
        threshold: the mean threshold of the folds, as a cosine; None with too few pairs.
    """

    curve: Series
    area: float
    equal_error: float
    threshold: Optional[float]


def accuracy(record: Record) -> Interval:
    """The accuracy of a verification or validation, with its interval."""
    names = ("accuracy", "accuracy_std", "total")
    value, deviation, total = (number(record, name) for name in names)
    if not 0 <= value <= 1:
        return Interval(math.nan, math.nan, math.nan)
    if total > 0:
        return _wilson(value, total)
    # The deviation that is written has the divisor FOLDS.
    half = _STUDENT * deviation / math.sqrt(FOLDS - 1)
    return Interval(value, max(value - half, 0.0), min(value + half, 1.0))


def _wilson(share: float, count: float) -> Interval:
    square = _NORMAL**2 / count
    center = (share + square / 2) / (1 + square)
    half = _NORMAL * math.sqrt(share * (1 - share) / count + square / count / 4) / (1 + square)
    return Interval(share, center - half, center + half)


def analyze(label: str, scores: Numbers) -> Scores:
    """Return what the scores [P, 2] of a set say; there are pairs of both kinds."""
    # Takes a second, and is needed here alone.
    from sklearn.metrics import roc_curve

    cosines, same = scores[:, 0], scores[:, 1] == 1
    far, tar, _ = roc_curve(same, cosines)
    curve, threshold = Curve(far, tar, int(np.sum(~same))), None
    if len(same) >= FOLDS:
        fold = folds_of(len(same), FOLDS)
        # The squared distance of two unit vectors is 2 - 2 cos.
        threshold = 1 - float(accuracies_of_folds(2 - 2 * cosines, same, fold)[1].mean()) / 2
    return Scores(Series(label, far, tar), area_under(curve), equal_error_rate(curve), threshold)


def time_shares(run: RunFiles) -> dict[str, float]:
    """The share of each part of an update in the time of all, and the rest; empty without any.

    As in the log, the first report counts only if there is no other: it compiles.
    """
    records = run.training[1:] or run.training
    seconds = _seconds(records)
    whole = seconds.sum()
    if not whole > 0:
        return {}
    found = {part: float((column(records, part) * seconds).sum() / whole) for part in PARTS}
    found = {part: share for part, share in found.items() if share > 0}
    return {**found, REST: max(0.0, 1 - sum(found.values()))}


def images_per_second(run: RunFiles) -> float:
    """The median of the reports, without the first, which compiles; NaN without any."""
    rates = _finite(column(run.training[1:] or run.training, "images_per_second"))
    return float(np.median(rates)) if len(rates) else math.nan


def duration(run: RunFiles) -> Optional[timedelta]:
    """The time from each start to the last record before the next one."""
    stamps = [record for records in run.targets.values() for record in records]
    times = _finite(column([*run.training, *stamps], "time"))
    if not len(times):
        return None
    starts = np.sort(_finite(column(run.parts, "time")))
    starts = starts if len(starts) else times.min(keepdims=True)
    total = 0.0
    for start, stop in zip(starts, [*starts[1:], math.inf]):
        within = times[(times >= start) & (times < stop)]
        total += float(within.max() - start) if len(within) else 0.0
    # The times of a damaged record can add up to more than timedelta holds.
    return timedelta(seconds=round(total)) if total < _LONGEST_SECONDS else None


def _finite(values: Numbers) -> Numbers:
    finite: Numbers = values[np.isfinite(values)]
    return finite


def last_update(run: RunFiles) -> int:
    """The last update of which there is a report."""
    records = [*run.training[-1:], *(records[-1] for records in run.targets.values())]
    return max((int(record[_UPDATE]) for record in records), default=0)


def of_training(runs: Sequence[RunFiles]) -> list[Picture]:
    """The charts of loss, learning rate and images/s."""
    marks = [float(part[_UPDATE]) for part in runs[0].parts[1:]] if len(runs) == 1 else []
    resumed = "Dotted lines: where the run went on." if marks else ""
    frames = {
        "loss": Frame("loss", "Loss", _UPDATE, "mean loss", resumed),
        "lr": Frame("learning-rate", "Learning rate", _UPDATE, "learning rate"),
        "images_per_second": Frame(
            "throughput", "Throughput", _UPDATE, "images/s",
            f"All ranks together, without verifications and saves. {resumed}",
        ),
    }  # fmt: skip
    pictures = []
    for name, frame in frames.items():
        series = [_series(run.name, run.training, name, _place(runs, run)) for run in runs]
        if any(len(one.x) for one in series):
            smooths, from_zero = name == "loss", name != "loss"
            pictures.append(lines(frame, series, smooths=smooths, from_zero=from_zero, marks=marks))
    return pictures


def of_accuracy(runs: Sequence[RunFiles]) -> list[Picture]:
    """A chart of each verification set, or of the validation, over the updates.

    The sets of one run share a chart.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.targets))
    is_single = len(runs) == 1
    pictures = []
    for index, shown in enumerate([names] if is_single and names else [[name] for name in names]):
        is_validation = shown == [VALIDATION]
        what = "Validation" if is_validation else "Verification"
        of = "" if is_single or is_validation else f" of {shown[0]}"
        note = "Bands: 95 % intervals (Wilson)." if is_validation else _FOLDS_NOTE
        frame = Frame(f"accuracy-{index}", f"{what}{of}", _UPDATE, "accuracy", note)
        series = [
            _accuracy_series(name if is_single else run.name, run.targets[name], _place(runs, run))
            for run in runs
            for name in shown
            if name in run.targets
        ]
        if is_validation and is_single:
            series.append(_series("training", runs[0].targets[VALIDATION], "training_accuracy"))
        pictures.append(lines(frame, series))
        if is_validation:
            pictures.append(_validation_loss(runs))
    return pictures


def _validation_loss(runs: Sequence[RunFiles]) -> Picture:
    name = VALIDATION
    is_single = len(runs) == 1
    series = [
        _series(name if is_single else run.name, run.targets[name], "loss", _place(runs, run))
        for run in runs
        if name in run.targets
    ]
    if is_single:
        series.append(_series("training", runs[0].targets[name], "training_loss"))
    frame = Frame("validation-loss", "Loss by epoch", _UPDATE, "mean loss", "Over whole epochs.")
    return lines(frame, series)


def of_scores(runs: Sequence[RunFiles]) -> list[Picture]:
    """ROC curves of the last verification, one chart per set; of one run also histograms."""
    names = list(dict.fromkeys(name for run in runs for name in run.scores))
    if names and len(runs) == 1:
        found = {name: analyze(name, runs[0].scores[name]) for name in names}
        return [
            _roc("roc", "ROC", [one.curve for one in found.values()], runs, names),
            *(
                _histogram(index, name, runs[0].scores[name], one.threshold)
                for index, (name, one) in enumerate(found.items())
            ),
        ]
    charts = []
    for index, name in enumerate(names):
        curves = [
            analyze(run.name, run.scores[name]).curve._replace(place=_place(runs, run))
            for run in runs
            if name in run.scores
        ]
        charts.append(_roc(f"roc-{index}", f"ROC of {name}", curves, runs, [name]))
    return charts


def _roc(
    chart: str, title: str, curves: list[Series], runs: Sequence[RunFiles], names: Sequence[str]
) -> Picture:
    note = "Pairs of the last verification. Dotted: chance."
    frame = Frame(chart, title, "false accept rate", "true accept rate", note)
    shown = [run.scores[name] for run in runs for name in names if name in run.scores]
    # The rate of one pair, as a power of ten.
    most = max(int(np.sum(scores[:, 1] == 0)) for scores in shown)
    return curves_of_rates(frame, curves, float(10.0 ** math.floor(math.log10(1 / most))))


def _histogram(index: int, name: str, scores: Numbers, threshold: Optional[float]) -> Picture:
    note = "" if threshold is None else f" Dashed: mean threshold of the folds, {threshold:.3f}."
    frame = Frame(
        f"scores-{index}", f"Scores of {name}", "cosine of a pair", "share of its kind",
        f"Pairs of the last verification.{note}",
    )  # fmt: skip
    same = scores[:, 1] == 1
    groups = [("same person", scores[same, 0]), ("different people", scores[~same, 0])]
    return histograms(frame, groups, threshold)


def _place(runs: Sequence[RunFiles], run: RunFiles) -> Optional[int]:
    """The color of a run among several: the same in all charts, also where another is missing."""
    return [one is run for one in runs].index(True) if len(runs) > 1 else None


def _series(
    label: str, records: Sequence[Record], name: str, place: Optional[int] = None
) -> Series:
    x, y = column(records, _UPDATE), column(records, name)
    known = np.isfinite(y)
    return Series(label, x[known], y[known], place=place)


def _accuracy_series(label: str, records: Sequence[Record], place: Optional[int]) -> Series:
    found = [accuracy(record) for record in records]
    values = np.array(found, np.float64).reshape(-1, 3)
    known = np.isfinite(values[:, 0])
    x, (y, low, high) = column(records, _UPDATE)[known], values[known].T
    if not np.isfinite(low).all():
        return Series(label, x, y, place=place)
    return Series(label, x, y, low, high, place)


def _seconds(records: Sequence[Record]) -> Numbers:
    """Seconds of each report but for a common factor: its updates by its images/s."""
    updates = column(records, _UPDATE)
    counts = np.diff(updates, prepend=0.0)
    if len(counts) > 1:
        # The first interval is not known if earlier reports are left out.
        counts[0] = counts[1]
    rates = column(records, "images_per_second")
    known = np.isfinite(rates) & (rates > 0)
    return np.where(known, counts / np.where(known, rates, 1.0), 0.0)
