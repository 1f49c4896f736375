"""How long a step of the Partial FC head takes, compared with alternatives.

    python -m benchmarks.head [--classes N --ratio R] [--batch B] [--threads 1,2] [--json FILE]

Four variants are measured in turns: the head of this project (``ours``); the same mathematics,
formula by formula, in MXNet (``textbook``) and in PyTorch (``pytorch``, if installed); and the
three matrix products alone (``products``), a lower bound for any head. The report goes to the
standard output.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple, Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import measure, worker
from benchmarks.head_case import DTYPES, HeadCase
from benchmarks.worker import Worker
from runtime.command_line import Parser, positive_integer
from runtime.environment import bfloat16_unit
from runtime.errors import ConfigError, run_program

_DEFAULT_SIZES = ((50_000, 1.0), (200_000, 0.1))
# As many sampled rows as in the second case, of ten times as many classes.
_LARGE_SIZE = (2_000_000, 0.01)
_WARM_UP_STEPS = 2
_MEBIBYTE = 2**20


class Variant(NamedTuple):
    """An implementation of the step.

    Attributes:
        target: the ``Subject`` of its workers.
        row_passes: how often its operators read or write a matrix of the size S × D, each operator
            by itself.
        logit_passes: the same for the size B × S.
        copy_passes: further ones of the size S × D if the sampled rows are copied out of all rows
            and back.
        dtypes: the types that its products can compute in.
    """

    target: str
    row_passes: int
    logit_passes: int
    copy_passes: int
    dtypes: tuple[str, ...] = ("float32",)

    def traffic(self, case: HeadCase) -> int:
        """The bytes of these passes; matrices of the size of the features are left out."""
        copies = self.copy_passes if case.rows < case.classes else 0
        floats = (self.row_passes + copies) * case.embedding + self.logit_passes * case.batch
        return 4 * case.rows * floats


# The passes are counted by hand, from the operators that a variant runs.
VARIANTS = {
    # Rows: gather 2, logits 1, gradients 2, update 5. Logits: made 1, exponentials 2 (the
    # largest is found while they are in the cache), gradients 2.
    "ours": Variant("benchmarks.toolkit_head:ToolkitHead", 10, 5, 0, DTYPES),
    # Rows: allocate the gradient 1, normalize 2, logits 1, backward 2 and 3, update 5. Logits: made
    # 1, one-hot 1, margin 5, scale 2, softmax 8, minus one-hot 3, mean 2, backward 6.
    "textbook": Variant("benchmarks.textbook_head:TextbookHead", 14, 28, 8),
    # Rows: normalize 3, logits 1, backward 2 and 21 (the norm is differentiated by its parts),
    # update 11. Logits: made 1, scale 2, softmax 8, mean 2, backward 4.
    "pytorch": Variant("benchmarks.pytorch_head:PyTorchHead", 38, 17, 8),
    # Two products read the centers, the third writes their gradient; one writes the logits, two
    # read them.
    "products": Variant("benchmarks.toolkit_head:Products", 3, 3, 0, DTYPES),
}


class HeadSetup(NamedTuple):
    """A variant and the sizes it is measured with."""

    variant: str
    case: HeadCase


class Comparison(NamedTuple):
    """What is measured in turns: all variants of one case, and ours with other sizes."""

    case: HeadCase
    others: tuple[HeadCase, ...] = ()

    def setups(self) -> list[HeadSetup]:
        """Everything that can be measured on this machine."""
        named = [
            HeadSetup(variant, self.case)
            for variant in VARIANTS
            if _is_installed(variant) and self.case.dtype in VARIANTS[variant].dtypes
        ]
        return named + [HeadSetup("ours", case) for case in self.others]


class HeadMeasurement(NamedTuple):
    """Of one setup: the seconds of its steps, and its peak of memory in bytes."""

    seconds: list[float]
    memory: Optional[int]

    @property
    def milliseconds(self) -> float:
        """The median of the steps."""
        return 1000 * statistics.median(self.seconds)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print the report and write the rows."""
    options = _parse(argv)
    sections: list[str] = []
    rows: list[measure.Row] = []
    for comparison in _comparisons(options):
        for threads in options.threads:
            print(f"measuring {comparison.case}, threads={threads}", file=sys.stderr)
            measured = compare(comparison, threads, options.rounds)
            sections.append(f"## {comparison.case}, threads={threads}")
            sections.append(table(comparison, measured))
            for setup, own in measured.items():
                case = f"{setup.case}, threads={threads}"
                rows.append(measure.Row(case, setup.variant, own.milliseconds, "ms"))
    print("\n\n".join([_introduction(options.rounds), *sections]))
    if options.json:
        measure.write_json(options.json, rows)


def compare(comparison: Comparison, threads: int, rounds: int) -> dict[HeadSetup, HeadMeasurement]:
    """Measure one step of each setup per round, each setup in a process of its own."""
    with ExitStack() as stack:
        workers = {}
        for setup in comparison.setups():
            python = worker.pytorch_python() if setup.variant == "pytorch" else None
            target = VARIANTS[setup.variant].target
            workers[setup] = stack.enter_context(Worker(target, threads, python or sys.executable))
            _prepare(workers[setup], setup.case)
        steps = {setup: partial(_second_step, workers[setup]) for setup in workers}
        seconds = measure.interleave(steps, rounds)
        return {
            setup: HeadMeasurement(seconds[setup], workers[setup].peak_memory())
            for setup in workers
        }


def _second_step(worker: Worker) -> float:
    """Of two steps, the seconds of the second.

    The first wakes up threads and finds other heads' memory in the cache. In training a backbone
    has run on the same threads just before.
    """
    worker.step()
    return worker.step()


def _prepare(worker: Worker, case: HeadCase) -> None:
    """Build the case; a small one before it loads and compiles what is not the step's memory."""
    small = min(case.classes, round(4 * case.batch / case.ratio))
    worker.create(dataclasses.asdict(dataclasses.replace(case, classes=small)))
    worker.step()
    worker.create(dataclasses.asdict(case))
    for _ in range(_WARM_UP_STEPS):
        worker.step()


def table(comparison: Comparison, measured: Mapping[HeadSetup, HeadMeasurement]) -> str:
    """Lay out the measurements of a comparison."""
    others = [measured.get(HeadSetup(variant, comparison.case)) for variant in VARIANTS]
    floor = measured[HeadSetup("products", comparison.case)]
    header = ["head", "ms", "from … to", *(f"÷ {variant}" for variant in VARIANTS)]
    header += ["share of the floor", "moved (MiB)", "peak memory (MiB)", "bound (MiB)"]
    lines = []
    for setup, own in measured.items():
        ms, extremes = own.milliseconds, (1000 * min(own.seconds), 1000 * max(own.seconds))
        lines.append(
            [
                setup.variant
                if setup.case == comparison.case
                else f"{setup.variant}: {setup.case}",
                f"{ms:.1f}",
                "{:.1f} … {:.1f}".format(*extremes),
                *(
                    f"{measure.ratio(own.seconds, other.seconds):.2f}" if other else ""
                    for other in others
                ),
                f"{measure.ratio(floor.seconds, own.seconds):.0%}",
                _traffic_cell(setup),
                *_memory_cells(setup, own.memory),
            ]
        )
    return measure.markdown_table(header, lines)


def _traffic_cell(setup: HeadSetup) -> str:
    """The passes are counted in float32; with bfloat16 some of them are half as long."""
    if setup.case.dtype != "float32":
        return ""
    return f"{VARIANTS[setup.variant].traffic(setup.case) / _MEBIBYTE:,.0f}"


def _memory_cells(setup: HeadSetup, peak: Optional[int]) -> tuple[str, str]:
    """The peak and the bound, which only ours has; the products keep no centers."""
    if setup.variant == "products" or peak is None:
        return "", ""
    bound = f"{setup.case.memory_bound / _MEBIBYTE:,.0f}" if setup.variant == "ours" else ""
    return f"{peak / _MEBIBYTE:,.0f}", bound


def _introduction(rounds: int) -> str:
    left_out = [variant for variant in VARIANTS if not _is_installed(variant)]
    missing = f"\n\nNot installed, hence left out: {', '.join(left_out)}." if left_out else ""
    return f"""# A step of the Partial FC head and its alternatives

{measure.machine()}

Medians of {rounds} rounds, in each of which every head takes two steps, with their sampling; the
second is measured, since the first wakes up threads that in training are awake. "÷ x" is the time
of the row divided by that of x in the same round; the share of the floor is the part of a step that
the three products alone would take. With bfloat16, ours in float32 is measured as well.
Moved is computed: what the operators of a head read and write of matrices as large as the sampled
rows or the logits. The peak memory is measured above that of the centers and momenta; the bound of
ours is 1.3 · (2·S·D + B·S + 4·B·D) floats.{missing}"""


def _is_installed(variant: str) -> bool:
    return variant != "pytorch" or worker.pytorch_python() is not None


def _comparisons(options: argparse.Namespace) -> list[Comparison]:
    def comparison(size: tuple[int, float], *larger: tuple[int, float]) -> Comparison:
        case, *others = (
            HeadCase(classes, ratio, batch=options.batch, dtype=options.dtype)
            for classes, ratio in (size, *larger)
        )
        if options.dtype != "float32":
            others.append(dataclasses.replace(case, dtype="float32"))
        return Comparison(case, tuple(others))

    if options.classes is not None:
        return [comparison((options.classes, options.ratio or 1.0))]
    full, sampled = _DEFAULT_SIZES
    return [comparison(full), comparison(sampled, _LARGE_SIZE)]


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.head",
        description="Measure a step of the Partial FC head and its alternatives.",
    )
    parser.add_argument(
        "--classes",
        type=positive_integer,
        help="how many there are (without: 50,000 at ratio 1, 200,000 at ratio 0.1, and ours with "
        "2,000,000 at ratio 0.01)",
    )
    parser.add_argument("--ratio", type=_ratio, help="sampled share of --classes (1)")
    parser.add_argument(
        "--batch", type=positive_integer, default=256, help="global batch (%(default)s)"
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="float32", help="of the products (%(default)s)"
    )
    measure.add_options(parser)
    options = parser.parse_args(argv)
    if options.ratio is not None and options.classes is None:
        raise ConfigError(f"--ratio {options.ratio:g} is a share of --classes; give both")
    if options.dtype == "bfloat16" and bfloat16_unit() is None:
        raise ConfigError(
            "--dtype bfloat16 would measure an emulation: this processor has neither AVX512_BF16 "
            "nor AMX tiles that oneDNN may use; use float32"
        )
    return options


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 0.0 < ratio <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 1")
    return ratio


if __name__ == "__main__":
    run_program(main)
