"""Write the report of a run again, or compare several runs, from what they have written.

    python -m evaluation.report models/synthetic-tiny
    python -m evaluation.report models/a models/b --out comparison.html

Training calls it at the end of a run, in a process of its own. It needs matplotlib and
scikit-learn, and neither MXNet nor the run's data: any machine will do, with a copy of the folder.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Optional

from evaluation.files import writing
from evaluation.report import elements, figures
from evaluation.report.elements import Strong
from evaluation.report.run_files import REPORT, VALIDATION, Record, RunFiles, number, read
from evaluation.verification.curves import area_under, equal_error_rate
from runtime.command_line import Parser
from runtime.errors import ConfigError
from runtime.files import write_atomically
from runtime.process.terminal import print_line
from runtime.stopping import run_stoppable

_COMPARISON = Path("comparison.html")
_AGAIN = "Made from the files of the run; python -m evaluation.report RUN makes it again."
# Is different in every run, and its name says so.
_LEFT_OUT = frozenset(("models_root",))
_TAR = "tar_at_far_"
_PART_COLUMNS = ("ranks", "host", "device", "processor", "processors")


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m evaluation.report",
        description="Write the report of a run, or a comparison of several, as one HTML file.",
    )
    add = parser.add_argument
    run_help = "the folder of a run, or a copy of it; several are compared"
    add("runs", type=Path, nargs="+", metavar="RUN", help=run_help)
    out_help = f"the page to write (RUN/{REPORT}; of several runs {_COMPARISON})"
    add("--out", type=Path, metavar="FILE.html", help=out_help)
    return parser.parse_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Write the page and print its place.

    Raises:
        ConfigError: matplotlib is missing.
        DataError: a folder is none of a run or damaged, or the page cannot be written.
    """
    options = _parse(argv)
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "a report needs matplotlib, which is not installed: make env installs it, or pip "
            "install matplotlib in the version of requirements.txt"
        )
    runs = [read(folder) for folder in options.runs]
    is_single = len(runs) == 1
    out = options.out or (runs[0].folder / REPORT if is_single else _COMPARISON)
    page = write_page(runs[0]) if is_single else write_comparison(runs)
    with writing(out, "--out"):
        write_atomically(out, page.encode())
    print_line(str(out))


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
            elements.table(["", run.name], _accuracy_rows([run])),
        ),
        elements.section("Training", elements.figures([*figures.of_training([run]), *samples])),
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


def tar_at_far(record: Record) -> str:
    """The true accept rates of a verification."""
    found = [
        f"{grouped(number(record, name), 4)} @ {name.removeprefix(_TAR)}"
        for name in record
        if name.startswith(_TAR)
    ]
    return ", ".join(found) or "–"


def _best(records: Sequence[Record]) -> str:
    """Return the best accuracy that is a number, and its update."""

    def known(record: Record) -> float:
        accuracy = number(record, "accuracy")
        return accuracy if math.isfinite(accuracy) else -math.inf

    best = max(records, key=known, default=None)
    return f"{grouped(number(best, 'accuracy'), 4)} at {best['update']:,}" if best else "–"


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


def _accuracy_rows(runs: Sequence[RunFiles]) -> list[list[str]]:
    """Return the rows of each set, with a cell for each run."""
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
        rows.append([f"best accuracy {name}", *(_best(run.targets.get(name, ())) for run in runs)])
        if any(key.startswith(_TAR) for last in lasts for key in last):
            rows.append([f"TAR@FAR {name}", *map(tar_at_far, lasts)])
        scores = [run.scores.get(name) for run in runs]
        curves = [None if one is None else figures.curve_of(one) for one in scores]
        for label, measure in (("area under ROC", area_under), ("equal error", equal_error_rate)):
            cells = ["–" if one is None else f"{measure(one):.4f}" for one in curves]
            if any(curves):
                rows.append([f"{label} {name}", *cells])
    return rows


def _final_rows(runs: Sequence[RunFiles]) -> list[list[str]]:
    return [
        *_accuracy_rows(runs),
        ["loss of the last report", *map(last_loss, runs)],
        ["updates", *(f"{figures.last_update(run):,}" for run in runs)],
        ["images/s, median", *map(rate, runs)],
        ["time", *(str(figures.duration(run) or "–") for run in runs)],
    ]


if __name__ == "__main__":
    run_stoppable(main)
