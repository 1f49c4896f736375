"""Compares what ``--dry-run`` says with what the same command needs when it runs.

    python -m benchmarks.plan

Each case is calibrated, planned and run, one after the other; faces come from memory, and the class
centers of a store lie in a temporary folder. Memory is the peak that every rank writes at the end
of its log, and the largest rank counts. Time is the median of the updates that follow the first
ones. A plan is within its bounds if memory is off by at most 10 % and time by at most 25 %; times
mean little on a machine that other programs use, memory does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Optional

from benchmarks import measure
from benchmarks.training_runs import peaks
from runtime.command_line import Parser, positive_integer
from runtime.errors import run_program
from training.config import faces, images
from training.plan.keys import Cell
from training.plan.runs import num_lines, start

_ROOT = Path(__file__).resolve().parents[1]
_WARM_UP = 3
# Of what is planned, at most.
BOUNDS = {"memory": 0.10, "time": 0.25}

_STORE = "--center-store {store}"
CASES = (
    "1 train.py --network tiny --num-classes 100000 --batch-size 64",
    "2 train.py --network tiny --num-classes 100000 --batch-size 64",
    "1 train.py --network mbf --num-classes 100000 --batch-size 64 --sample-ratio 0.1 --recompute",
    "2 train.py --network mbf --num-classes 100000 --batch-size 32 --sample-ratio 0.1",
    f"1 train.py --network mbf --num-classes 1000000 --batch-size 32 --sample-ratio 0.01 {_STORE}",
    f"2 train.py --network tiny --num-classes 500000 --batch-size 64 --sample-ratio 0.01 {_STORE}",
    "1 classify.py --dataset synthetic --model ResNet18 --batch-size 32",
    "2 classify.py --dataset synthetic --model MobileNetV2 --batch-size 32",
)
# What only a measurement gives: batches from memory, no checkpoints, a line for each update, and a
# rate at which random labels do not diverge.
_MEASURED = {
    "train.py": "--rec . --debug --lr 1e-4 --max-update 1000000",
    "classify.py": "--lr 1e-4 --save-frequency 0",
}
_EACH = "--keep 0 --frequent 1 --resume never"


class Figures(NamedTuple):
    """Of a rank: peak bytes; of an update: seconds."""

    memory: float
    time: float


class Comparison(NamedTuple):
    """A case with its ranks, what was planned for it, and what it took."""

    case: str
    planned: Figures
    taken: Figures

    def deviation(self, of: str) -> float:
        """Planned over taken, less one."""
        return float(getattr(self.planned, of) / getattr(self.taken, of) - 1)

    def is_within(self, of: str) -> bool:
        """Whether the plan is off by no more than its bound."""
        return abs(self.deviation(of)) <= BOUNDS[of]


def compare(case: str, updates: int, *, calibrates: bool = True) -> Comparison:
    """Plan and run a case: ranks, program and options.

    Raises:
        RuntimeError: planning failed; with what it printed.
        ConfigError: the run failed.
    """
    ranks, program, *words = shlex.split(case)
    with TemporaryDirectory() as folder:
        root = Path(folder)
        words = [word.format(store=root / "store") for word in words]
        common = [*_MEASURED[program].split(), *_EACH.split(), *words]
        plan = [sys.executable, program, *common, "--dry-run", "--json", "--world-size", ranks]
        found = json.loads(_run([*plan, *["--calibrate"] * calibrates]))
        planned = Figures(found["memory"]["bytes"], found["time"]["seconds"])
        parse = faces.parse if program == "train.py" else images.parse
        chosen = parse([*common, "--models-root", str(root / "run")])
        file, metrics = root / "config.json", root / "run/metrics.jsonl"
        # A launcher would take --network for an option of its own.
        file.write_text(json.dumps(chosen.values()), encoding="utf-8")
        start(
            Cell.of(int(ranks)),
            [program, "--config", str(file)],
            lambda: num_lines(metrics) >= _WARM_UP + updates,
        )
        return Comparison(case, planned, taken(root / "run", found["batch_size"] * int(ranks)))


def taken(folder: Path, global_batch: int) -> Figures:
    """What a run wrote: the peak of its largest rank, and the median time of an update."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if record["update"] > _WARM_UP]
    seconds = [global_batch / record["images_per_second"] for record in records]
    return Figures(2**20 * max(peaks(folder)), statistics.median(seconds))


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def report(comparisons: Sequence[Comparison]) -> str:
    """A table in Markdown, and how many plans hold."""
    lines = [
        [
            f"`{one.case}`",
            f"{one.planned.memory / 2**20:,.0f}",
            f"{one.taken.memory / 2**20:,.0f}",
            f"{one.deviation('memory'):+.1%}",
            f"{one.planned.time * 1000:,.0f}",
            f"{one.taken.time * 1000:,.0f}",
            f"{one.deviation('time'):+.0%}",
        ]
        for one in comparisons
    ]
    header = ["ranks, program and options", "planned (MiB)", "taken (MiB)", "off"]
    table = measure.markdown_table([*header, "planned (ms)", "taken (ms)", "off"], lines)
    held = ", ".join(
        f"{of} within {bound:.0%}: {sum(one.is_within(of) for one in comparisons)} of "
        f"{len(comparisons)}"
        for of, bound in BOUNDS.items()
    )
    return f"# What is planned and what a run takes\n\n{measure.machine()}\n\n{table}\n\n{held}"


def rows(comparisons: Sequence[Comparison]) -> list[measure.Row]:
    """Rows for ``--json``."""
    return [
        measure.Row(one.case, f"{who} {of}", getattr(getattr(one, who), of), unit)
        for one in comparisons
        for who in ("planned", "taken")
        for of, unit in (("memory", "B"), ("time", "s"))
    ]


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Compare, and print the report."""
    options = _parse(argv)
    found = []
    for case in options.case or CASES:
        found.append(compare(case, options.updates, calibrates=not options.planned))
        if options.json is not None:
            measure.write_json(options.json, rows(found))
    print(report(found))
    return 0


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.plan",
        description="Compare the plan of --dry-run with runs.",
    )
    parser.add_argument(
        "--case",
        action="append",
        help='ranks, program and options, as in "2 train.py --network tiny --num-classes 1000"; '
        "may be repeated (eight cases)",
    )
    parser.add_argument(
        "--updates", type=positive_integer, default=10, help="that are measured (%(default)s)"
    )
    parser.add_argument(
        "--planned", action="store_true", help="use what an earlier --calibrate has measured"
    )
    parser.add_argument("--json", type=measure.file_to_write, metavar="FILE", help="write the rows")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_program(main)
