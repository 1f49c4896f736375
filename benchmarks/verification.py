"""How many faces per second verification embeds on the CPU, beside the graph that trains.

    python -m benchmarks.verification [--network mbf,r50]

A face is one view: with the flip test an image is two. The report goes to the standard output.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Optional

import backbones
from benchmarks import measure
from benchmarks.measure import Case, Variant
from runtime.command_line import positive_integer
from runtime.environment import bfloat16_unit, variables_of_lanes, visible_threads
from runtime.errors import run_program

_TARGET = "benchmarks.toolkit_subjects:ToolkitInference"
_SAID = """Medians of {} batches, in turns; ratios are medians over the rounds. "Lanes" are several
batches at a time, each with a share of the threads, as ``evaluation`` computes; all others, and
validation in a training, compute one with all threads."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure and print the report."""
    options = _parse(argv)
    sections = measure.sections(_cases(options), options.rounds, column="graph", sign="×")
    measure.print_report(
        "Embeddings for verification on the CPU", _SAID.format(options.rounds), sections
    )


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    for threads in options.threads:
        lanes = variables_of_lanes(threads)
        for network in options.network:
            arguments = {"network": network, "batch": options.batch}
            variants = {
                "graph of training": Variant(_TARGET, {**arguments, "trained": True}),
                "graph of inference": Variant(_TARGET, arguments),
                "lanes": Variant(_TARGET, arguments, variables=lanes),
            }
            if bfloat16_unit():
                narrow = {**arguments, "dtype": "bfloat16"}
                variants["lanes, bfloat16"] = Variant(_TARGET, narrow, variables=lanes)
            title = f"{network}, B={options.batch}, threads={threads}"
            yield Case(title, threads, variants, options.batch)


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = measure.parser("verification", __doc__, threads=visible_threads())
    add = parser.add_argument
    add("--network", type=measure.words, default="mbf,r50", help="names (%(default)s)")
    add("--batch", type=positive_integer, default=64, help="images of a step (%(default)s)")
    options = parser.parse_args(argv)
    for network in options.network:
        backbones.check(network)
    return options


if __name__ == "__main__":
    run_program(main)
