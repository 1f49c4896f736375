"""How long a step of the Partial FC head takes, compared with alternatives.

    python -m benchmarks.head [--classes N --ratio R] [--batch B] [--threads 1,2]

Measured in turns are the head of this project (``ours``); Partial FC in PyTorch, if it is
installed, eager or compiled, whichever is faster (``pytorch``); and the three matrix products alone
(``products``), a lower bound for any head. The report goes to the standard output.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Optional

from benchmarks import measure
from benchmarks.head_case import DTYPES, HeadCase
from benchmarks.measure import Case, Variant
from runtime.command_line import positive_integer
from runtime.environment import bfloat16_unit
from runtime.errors import ConfigError, run_program

_DEFAULT_SIZES = ((50_000, 1.0), (200_000, 0.1))
# As many sampled rows as in the second case, of ten times as many classes.
_LARGE_SIZE = (2_000_000, 0.01)
_SAID = """Medians of {} rounds, in each of which every head takes two steps, with their sampling;
the second is measured, since the first wakes up threads that in training are awake. "÷ x" is the
time of the row divided by that of x in the same round. The peak memory is measured above that of
the centers and momenta. With bfloat16, ours in float32 is measured as well."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure and print the report."""
    options = _parse(argv)
    sections = measure.sections(
        _cases(options), options.rounds, column="head", sign="÷", fastest=["pytorch"], steps=2
    )
    said = _SAID.format(options.rounds)
    measure.print_report("A step of the Partial FC head and its alternatives", said, sections)


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    """Yield the cases: each has a head of our own of other sizes or of another type, too."""

    def case(classes: int, ratio: float, dtype: str = options.dtype) -> HeadCase:
        return HeadCase(classes, ratio, options.batch, dtype=dtype)

    sizes = [(options.classes, options.ratio or 1.0)] if options.classes else [*_DEFAULT_SIZES]
    for size in sizes:
        others = [case(*size, "float32")] if options.dtype != "float32" else []
        if not options.classes and size == _DEFAULT_SIZES[1]:
            others.append(case(*_LARGE_SIZE))
        for threads in options.threads:
            yield Case(f"{case(*size)}, threads={threads}", threads, variants(case(*size), others))


def variants(case: HeadCase, others: Sequence[HeadCase]) -> dict[str, Variant]:
    """All variants of a case, and ours with other sizes."""
    sizes = dataclasses.asdict(case)
    found = {
        "ours": _ours(case),
        "products": Variant("benchmarks.toolkit_subjects:Products", sizes),
    }
    if case.dtype == "float32":
        target = "benchmarks.pytorch_subjects:PyTorchHead"
        found |= measure.pytorch_forms("pytorch", target, sizes, has_maps=False)
    return {**found, **{f"ours: {other}": _ours(other) for other in others}}


def _ours(case: HeadCase) -> Variant:
    small = min(case.classes, round(4 * case.batch / case.ratio))
    first = dataclasses.asdict(dataclasses.replace(case, classes=small))
    return Variant("benchmarks.toolkit_subjects:ToolkitHead", dataclasses.asdict(case), first)


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = measure.parser("head", __doc__)
    add = parser.add_argument
    classes_help = (
        "how many there are (without: 50,000 at ratio 1, 200,000 at ratio 0.1, and ours with "
        "2,000,000 at ratio 0.01)"
    )
    add("--classes", type=positive_integer, help=classes_help)
    add("--ratio", type=measure.share, help="sampled share of --classes (1)")
    add("--batch", type=positive_integer, default=256, help="global batch (%(default)s)")
    add("--dtype", choices=DTYPES, default="float32", help="of the products (%(default)s)")
    options = parser.parse_args(argv)
    if options.ratio is not None and options.classes is None:
        raise ConfigError(f"--ratio {options.ratio:g} is a share of --classes; give both")
    if options.dtype == "bfloat16" and bfloat16_unit() is None:
        raise ConfigError(
            "--dtype bfloat16 would measure an emulation: this processor has neither AVX512_BF16 "
            "nor AMX tiles that oneDNN may use; use float32"
        )
    return options


if __name__ == "__main__":
    run_program(main)
