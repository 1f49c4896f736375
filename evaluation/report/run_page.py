"""The report of one run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timezone

from evaluation.report import elements, figures
from evaluation.report.run_files import VALIDATION, Record, RunFiles, number

_AGAIN = "Made from the files of the run; python -m evaluation.report RUN makes it again."
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
    stamps = [record for record in (*run.parts[:1], *run.training[:1])]
    return " · ".join([*about, *(moment(record) for record in stamps[:1])])


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
        best = max(records, key=lambda one: _or_zero(number(one, "accuracy")))
        row = [
            name,
            grouped(number(last, "total") if scores is None else float(len(scores))),
            str(figures.accuracy(last)),
            f"{grouped(number(best, 'accuracy'), 4)} at {best['update']:,}",
            tar_at_far(last),
            *("–", "–"),
        ]
        if scores is not None:
            found = figures.analyze(name, scores)
            row[-2:] = [f"{found.area:.4f}", f"{found.equal_error:.4f}"]
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


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _parts(run: RunFiles) -> str:
    titles = ["started", "from update", *_PART_COLUMNS]
    rows = [
        [moment(part), f"{part['update']:,}", *(part.get(name, "–") for name in _PART_COLUMNS)]
        for part in run.parts
    ]
    command = run.parts[-1].get("command") if run.parts else None
    shown = f'<p class="muted">Last command: <code>{elements.text(command)}</code></p>'
    return elements.table(titles, rows) + (shown if isinstance(command, str) else "")
