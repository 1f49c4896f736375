"""The pages: the report of one run, and the comparison of several."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from evaluation.report import elements, figures
from evaluation.report.elements import Strong
from evaluation.report.run_files import VALIDATION, Record, RunFiles, number
from evaluation.verification.curves import area_under, equal_error_rate

_AGAIN = "Made from the files of the run; python -m evaluation.report RUN makes it again."
# Is different in every run, and its name says so.
_LEFT_OUT = frozenset(("models_root",))
_PART_COLUMNS = ("ranks", "host", "device", "processor", "processors")


def write_page(run: RunFiles) -> str:
    """Return the report of a run as an HTML page."""
    samples: list[str] = []
    if run.samples is not None:
        note = "Of rank 0's first batch, as the network gets them; below each its class."
        samples = [elements.picture_of(run.samples, "samples", "Training images", note)]
    versions = run.parts[-1].get("versions") if run.parts else None
    versions = versions if isinstance(versions, dict) else {}
    body = [
        elements.tiles(_tiles(run)),
        elements.section(
            "Accuracy",
            elements.figures([*figures.of_accuracy([run]), *figures.of_scores([run])]),
            elements.table(*_accuracy_rows(run)) if run.targets else "",
        ),
        elements.section("Training", elements.figures(figures.of_training([run]), samples)),
        elements.section("Time of an update", elements.bar(figures.time_shares(run))),
        elements.section("Configuration", elements.values(run.config)),
        elements.section("Parts of the run", _parts(run)),
        elements.section("Versions", elements.values(versions)),
        f"<footer>{_AGAIN}</footer>",
    ]
    return elements.page("Training run", run.name, _subtitle(run), body)


def grouped(value: float, digits: int = 0) -> str:
    """A number with its thousands apart; a dash for NaN."""
    return f"{value:,.{digits}f}" if math.isfinite(value) else "–"


def moment(record: Record) -> str:
    """When a record was written."""
    seconds = number(record, "time")
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return "–"


def last_loss(run: RunFiles) -> str:
    """The loss of the last report."""
    return grouped(number(run.training[-1], "loss"), 4) if run.training else "–"


def rate(run: RunFiles) -> str:
    """The images/s of a run."""
    found = figures.images_per_second(run)
    return grouped(found, 0 if found >= 100 else 1)


def _subtitle(run: RunFiles) -> str:
    names = ("dataset", "network", "model", "loss", "optimizer")
    about = [str(run.config[name]) for name in names if isinstance(run.config.get(name), str)]
    return " · ".join([*about, *map(moment, [*run.parts, *run.training][:1])])


def _tiles(run: RunFiles) -> Iterator[tuple[str, str, str]]:
    for name, records in run.targets.items():
        last = figures.accuracy(records[-1])
        note = f"95 %: {last.low:.4f} to {last.high:.4f}" if math.isfinite(last.low) else ""
        label = "validation accuracy" if name == VALIDATION else f"accuracy {name}"
        yield label, grouped(last.value, 4), note
    last_update = figures.last_update(run)
    part = run.parts[-1] if run.parts else {}
    total, ranks = number(part, "total_updates"), number(part, "ranks")
    yield "updates", f"{last_update:,}", f"of {total:,.0f}" if math.isfinite(total) else ""
    yield "loss", last_loss(run), "of the last report"
    yield "images/s", rate(run), "median of the reports, all ranks"
    seconds = figures.duration(run)
    if seconds is not None:
        parts = len(run.parts)
        yield "time", str(seconds), f"in {parts} parts" if parts > 1 else "in one part"
    if math.isfinite(ranks):
        yield "ranks", f"{ranks:.0f}", str(part.get("device", ""))


def _accuracy_rows(run: RunFiles) -> tuple[list[str], list[list[str]]]:
    titles = ["set", "pairs or images", "last", "best", "TAR@FAR", "area under ROC", "equal error"]
    rows = []
    for name, records in run.targets.items():
        last, scores = records[-1], run.scores.get(name)
        best = _best(records)
        row = [
            name,
            grouped(number(last, "total") if scores is None else float(len(scores))),
            str(figures.accuracy(last)),
            f"{grouped(number(best, 'accuracy'), 4)} at {best['update']:,}",
            tar_at_far(last),
            *("–", "–"),
        ]
        if scores is not None:
            curve = figures.curve_of(scores)
            row[-2:] = [f"{area_under(curve):.4f}", f"{equal_error_rate(curve):.4f}"]
        rows.append(row)
    # Only a verification has pairs.
    kept = [i for i in range(len(titles)) if any(row[i] != "–" for row in rows)]
    return [titles[i] for i in kept], [[row[i] for i in kept] for row in rows]


def tar_at_far(record: Record) -> str:
    """The true accept rates of a verification."""
    prefix = "tar_at_far_"
    found = [
        f"{grouped(number(record, name), 4)} @ {name[len(prefix) :]}"
        for name in record
        if name.startswith(prefix)
    ]
    return ", ".join(found) or "–"


def _best(records: Sequence[Record]) -> Record:
    """Return the record with the best accuracy that is a number, or the first; none of none."""

    def known(record: Record) -> float:
        accuracy = number(record, "accuracy")
        return accuracy if math.isfinite(accuracy) else -math.inf

    return max(records, key=known, default={})


def _parts(run: RunFiles) -> str:
    titles = ["started", "from update", *_PART_COLUMNS]
    rows = [
        [moment(part), f"{part['update']:,}", *(part.get(name, "–") for name in _PART_COLUMNS)]
        for part in run.parts
    ]
    command = run.parts[-1].get("command") if run.parts else None
    shown = f'<p class="muted">Last command: <code>{elements.text(command)}</code></p>'
    return elements.table(titles, rows) + (shown if isinstance(command, str) else "")


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
    missing = "no such option"
    rows = []
    for option in (name for name in options if name not in _LEFT_OUT):
        found = [run.config.get(option, missing) for run in runs]
        if any(one != found[0] for one in found):
            rows.append([option, *map(elements.said, found)])
    return rows


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
        best = [number(_best(run.targets.get(name, ())), "accuracy") for run in runs]
        rows.append([f"best accuracy {name}", *(grouped(value, 4) for value in best)])
        if any(key.startswith("tar_at_far") for last in lasts for key in last):
            rows.append([f"TAR@FAR {name}", *map(tar_at_far, lasts)])
        if any(name in run.scores for run in runs):
            rows.append([f"area under ROC {name}", *(_area(run, name) for run in runs)])
    rows.append(["loss of the last report", *map(last_loss, runs)])
    rows.append(["updates", *(f"{figures.last_update(run):,}" for run in runs)])
    rows.append(["images/s, median", *map(rate, runs)])
    rows.append(["time", *(str(figures.duration(run) or "–") for run in runs)])
    return rows


def _area(run: RunFiles, name: str) -> str:
    scores = run.scores.get(name)
    return "–" if scores is None else f"{area_under(figures.curve_of(scores)):.4f}"
