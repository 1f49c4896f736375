"""How many faces per second verification embeds on the CPU, and what the convolutions allow.

    python -m benchmarks.verification [--network mbf,r50] [--model PREFIX,EPOCH] [--json FILE]

A face is one view: with the flip test an image is two. The report goes to the standard output.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import backbones
from benchmarks import measure
from benchmarks.worker import Worker
from runtime.command_line import Parser, positive_integer
from runtime.environment import bfloat16_unit, variables_of_lanes, visible_threads
from runtime.errors import run_program

_BATCH = 64


class _Subject(NamedTuple):
    """What is measured: a class, how many batches it computes at a time, and in which format."""

    name: str
    has_lanes: bool = False
    dtype: str = "float32"


_SUBJECTS = {
    "graph of training": _Subject("GraphOfTraining"),
    "graph of inference": _Subject("GraphOfInference"),
    "layers alone": _Subject("LayersAlone"),
    "lanes": _Subject("GraphOfInference", has_lanes=True),
    "lanes, bfloat16": _Subject("GraphOfInference", has_lanes=True, dtype="bfloat16"),
}


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print the report and write the rows."""
    options = _parse(argv)
    networks = [*options.network, *([options.model] if options.model else [])]
    lines, rows = [], []
    for threads in options.threads:
        for network in networks:
            case = f"{network}, B={options.batch}, threads={threads}"
            print(f"measuring {case}", file=sys.stderr)
            seconds = _measure(network, options, threads)
            speeds = {
                name: options.batch / statistics.median(found) for name, found in seconds.items()
            }
            trained, inferred, alone, *_ = seconds.values()
            lines.append(
                [
                    case,
                    *(f"{speed:,.1f}" for speed in speeds.values()),
                    f"{measure.ratio(trained, inferred):.2f}",
                    f"{measure.ratio(alone, inferred):.2f}",
                ]
            )
            rows += [measure.Row(case, name, speed, "images/s") for name, speed in speeds.items()]
    header = ["case", *(f"{name} (images/s)" for name in _measured())]
    header += ["inference / training", "inference / layers alone"]
    print(_introduction(options.rounds), measure.markdown_table(header, lines), sep="\n\n")
    if options.json:
        measure.write_json(options.json, rows)


def _measured() -> Mapping[str, _Subject]:
    """Those that this machine computes."""
    formats = {"float32"} | ({"bfloat16"} if bfloat16_unit() else set())
    return {name: one for name, one in _SUBJECTS.items() if one.dtype in formats}


def _measure(network: str, options: argparse.Namespace, threads: int) -> dict[str, list[float]]:
    """The seconds of a batch by each subject, in turns."""
    model = network if network == options.model else None
    arguments = {"network": network, "batch": options.batch, "model": model}
    with ExitStack() as stack:
        workers = {}
        for name, subject in _measured().items():
            target = f"benchmarks.toolkit_inference:{subject.name}"
            variables = variables_of_lanes(threads) if subject.has_lanes else {}
            workers[name] = stack.enter_context(Worker(target, threads, variables=variables))
            workers[name].create({**arguments, "dtype": subject.dtype})
            workers[name].step()
        steps = {name: worker.step for name, worker in workers.items()}
        return measure.interleave(steps, options.rounds)


def _introduction(rounds: int) -> str:
    return f"""# Embeddings for verification on the CPU

{measure.machine()}

Medians of {rounds} batches, in turns; ratios are medians over the rounds. "Layers alone" are the
convolutions and the linear layer with their biases and sums, and nothing else of the network.
"Lanes" are several batches at a time, each with a share of the threads, as ``evaluation`` computes;
all others, and validation in a training, compute one with all threads."""


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.verification", description="Measure embeddings on the CPU."
    )
    parser.add_argument(
        "--network",
        type=lambda text: [word.strip() for word in text.split(",") if word.strip()],
        default="mbf,r50",
        help="names of backbones (%(default)s)",
    )
    parser.add_argument(
        "--model", metavar="PREFIX,EPOCH", help="a checkpoint that is measured as well"
    )
    parser.add_argument(
        "--batch", type=positive_integer, default=_BATCH, help="images of a step (%(default)s)"
    )
    measure.add_options(parser)
    parser.set_defaults(threads=str(visible_threads()))
    options = parser.parse_args(argv)
    for network in options.network:
        backbones.check(network)
    return options


if __name__ == "__main__":
    run_program(main)
