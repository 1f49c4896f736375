"""Write the report of a run again, or compare several runs, from what they have written.

    python -m evaluation.report models/synthetic-tiny
    python -m evaluation.report models/a models/b --out comparison.html

Training calls it at the end of a run, in a process of its own. It needs matplotlib and
scikit-learn, and neither MXNet nor the run's data: any machine will do, with a copy of the folder.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Optional

import numpy as np

from evaluation.files import writing
from evaluation.report import elements, figures
from evaluation.report.run_files import REPORT, Record, RunFiles, number, read
from evaluation.verification.curves import area_under, equal_error_rate
from runtime.command_line import Parser
from runtime.errors import ConfigError, print_line, run_stoppable
from runtime.files import write_atomically

_COMPARISON = Path("comparison.html")
_SUBTITLE = ("dataset", "network", "model", "loss", "optimizer")
_NONE = "–"
_TAR = "tar_at_far_"


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
    runs = with_names([read(folder) for folder in options.runs])
    out = options.out or (runs[0].folder / REPORT if len(runs) == 1 else _COMPARISON)
    with writing(out, "--out"):
        write_atomically(out, write_page(runs).encode())
    print_line(str(out))


def write_page(runs: Sequence[RunFiles]) -> str:
    """Return the report of a run, or a comparison of several, as an HTML page."""
    run, names, training = runs[0], [run.name for run in runs], figures.of_training(runs)
    if len(runs) == 1:
        kind, said = "Training run", [run.config.get(name) for name in _SUBTITLE]
        if run.samples is not None:
            note = "Of rank 0's first batch, as the network gets them; below each its class."
            training.append(
                elements.figure("samples", "Training images", "jpeg", run.samples, note)
            )
        parts = [{**part, "time": _moment(part)} for part in run.parts]
        titles = ["", *(f"part {index}" for index in range(1, len(parts) + 1))]
        about = [
            elements.section("Time of an update", elements.bar(figures.time_shares(run))),
            elements.section("Configuration", elements.values(run.config)),
            elements.section("Parts of the run", elements.table(titles, _rows(parts))),
        ]
    else:
        kind, said = "Comparison of runs", [f"{len(runs)} runs"]
        options = _rows([run.config for run in runs])
        differing = [row for row in options if len(set(row[1:])) > 1]
        table = elements.table(["option", *names], differing)
        about = [elements.section("Differences in configuration", table)]
    accuracies = [*figures.of_accuracy(runs), *figures.of_scores(runs)]
    body = [
        elements.section("Final figures", elements.table(["", *names], final_rows(runs))),
        elements.section("Accuracy", elements.figures(accuracies)),
        elements.section("Training", elements.figures(training)),
        *about,
        "<footer>Made from the files of each run by python -m evaluation.report RUN.</footer>",
    ]
    subtitle = " · ".join(one for one in said if isinstance(one, str))
    return elements.page(kind, " · ".join(names), subtitle, body)


def with_names(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """Return the runs with names that no other has: that of the folder, or its path."""
    names = [run.name for run in runs]
    return [
        replace(run, name=str(run.folder)) if names.count(run.name) > 1 else run for run in runs
    ]


def _rows(tables: Sequence[Record]) -> list[list[str]]:
    """Return a row of each name in some tables, with its value in each."""
    names = dict.fromkeys(name for table in tables for name in table)
    return [[name, *(elements.said(table.get(name)) for table in tables)] for name in names]


def final_rows(runs: Sequence[RunFiles]) -> list[list[str]]:
    """Return the rows of the final figures, with a cell for each run."""
    lasts = [run.training[-1] if run.training else {} for run in runs]
    rows = [
        *_accuracy_rows(runs),
        ["loss of the last report", *(_grouped(number(last, "loss"), 4) for last in lasts)],
        ["updates", *(f"{figures.last_update(run):,}" for run in runs)],
        ["images/s, median", *(_grouped(figures.images_per_second(run), 1) for run in runs)],
        ["time", *(str(figures.duration(run) or _NONE) for run in runs)],
    ]
    return [row for row in rows if set(row[1:]) != {_NONE}]


def _grouped(value: float, digits: int = 0) -> str:
    """Return a number with its thousands apart; a dash for NaN."""
    return f"{value:,.{digits}f}" if math.isfinite(value) else _NONE


def _moment(record: Record) -> str:
    """Return when a record was written."""
    seconds = number(record, "time")
    return f"{np.datetime64(int(seconds), 's')} UTC" if math.isfinite(seconds) else _NONE


def _tar_at_far(record: Record) -> str:
    """The true accept rates of a verification."""
    found = [
        f"{_grouped(number(record, name), 4)} @ {name.removeprefix(_TAR)}"
        for name in record
        if name.startswith(_TAR)
    ]
    return ", ".join(found) or _NONE


def _best(records: Sequence[Record]) -> str:
    best = figures.best(records)
    return f"{best['accuracy']:.4f} at {best['update']:,}" if best else _NONE


def _accuracy_rows(runs: Sequence[RunFiles]) -> list[list[str]]:
    rows: list[list[str]] = []
    for name in dict.fromkeys(name for run in runs for name in run.targets):
        found = [run.targets.get(name, ()) for run in runs]
        lasts = [records[-1] if records else {} for records in found]
        accuracies = [str(figures.accuracy(last)) for last in lasts]
        rows.append([f"accuracy {name}, 95 % interval", *accuracies])
        rows.append([f"best accuracy {name}", *map(_best, found)])
        rows.append([f"TAR@FAR {name}", *map(_tar_at_far, lasts)])
        scores = [run.scores.get(name) for run in runs]
        curves = [None if one is None else figures.curve_of(one) for one in scores]
        for label, measure in (("area under ROC", area_under), ("equal error", equal_error_rate)):
            cells = (_NONE if one is None else f"{measure(one):.4f}" for one in curves)
            rows.append([f"{label} {name}", *cells])
    return rows


if __name__ == "__main__":
    run_stoppable(main)
