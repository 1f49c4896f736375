"""Write the report of a run again, or compare several runs, from what they have written.

    python -m evaluation.report models/synthetic-tiny
    python -m evaluation.report models/a models/b --out comparison.html

Training calls it at the end of a run, in a process of its own. It needs matplotlib and
scikit-learn, and neither MXNet nor the run's data: any machine will do, with a copy of the folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Optional

from evaluation.files import writing
from evaluation.report.pages import write_comparison, write_page
from evaluation.report.run_files import REPORT, read
from runtime.command_line import Parser
from runtime.errors import ConfigError
from runtime.files import write_atomically
from runtime.process.terminal import print_line
from runtime.stopping import run_stoppable

_COMPARISON = Path("comparison.html")


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


if __name__ == "__main__":
    run_stoppable(main)
