"""How long a training step of a backbone takes on the CPU, and in which variant.

    python -m benchmarks.backbone [--network r50,r100,mbf] [--batch B] [--threads 2] [--json FILE]

Measured in turns are the backbone as this project runs it (``ours``), the graph that it exports,
with MXNet's own PReLU (``plain``), the first with ``--recompute`` (``recompute``) and with
``--dtype bfloat16`` (``bfloat16``, if the processor has matrix tiles), and the same layers in
PyTorch (``pytorch``, and by its autocast ``pytorch bfloat16``, if it is installed and has the
network). A step is forward, backward and the update by SGD. The report goes to the standard output.
"""

from __future__ import annotations

import argparse
import dataclasses
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
from benchmarks import measure, worker
from benchmarks.backbone_case import PYTORCH_NETWORKS, BackboneCase
from benchmarks.worker import Worker
from runtime.command_line import Parser, positive_integer
from runtime.environment import bfloat16_unit, visible_threads
from runtime.errors import run_program
from runtime.options import check_name

SUBJECTS = {
    "ours": "benchmarks.toolkit_backbone:ToolkitBackbone",
    "plain": "benchmarks.toolkit_backbone:PlainBackbone",
    "recompute": "benchmarks.toolkit_backbone:RecomputingBackbone",
    "bfloat16": "benchmarks.toolkit_backbone:ToolkitBackbone",
    "pytorch": "benchmarks.pytorch_backbone:PyTorchBackbone",
    "pytorch bfloat16": "benchmarks.pytorch_backbone:PyTorchBackbone",
}
_PYTORCH = ("pytorch", "pytorch bfloat16")
_NARROW = ("bfloat16", "pytorch bfloat16")
_NETWORKS = "r50,r100,mbf"
_BATCH = 16
# A small network has short steps; this is the batch that one would train it with.
_BATCHES = {"mbf": 32}
_WARM_UP_STEPS = 2
_MEBIBYTE = 2**20


class BackboneMeasurement(NamedTuple):
    """Of one variant: the seconds of its steps, and its peak of memory in bytes."""

    seconds: list[float]
    memory: Optional[int]

    @property
    def median(self) -> float:
        """The median of the steps, in seconds."""
        return statistics.median(self.seconds)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print the report and write the rows."""
    options = _parse(argv)
    sections: list[str] = []
    rows: list[measure.Row] = []
    for network in options.network:
        case = BackboneCase(network, options.batch or _BATCHES.get(network, _BATCH))
        for threads in options.threads:
            title = f"{case}, threads={threads}"
            print(f"measuring {title}", file=sys.stderr)
            chosen = [name for name in variants(network) if name in options.variants]
            measured = compare(case, threads, options.rounds, chosen)
            sections += [f"## {title}", table(case, measured)]
            rows += [
                measure.Row(title, name, 1000 * own.median, "ms") for name, own in measured.items()
            ]
    print("\n\n".join([_introduction(options.rounds), *sections]))
    if options.json:
        measure.write_json(options.json, rows)


def compare(
    case: BackboneCase, threads: int, rounds: int, chosen: Sequence[str]
) -> dict[str, BackboneMeasurement]:
    """Measure one step of each variant per round, each variant in a process of its own."""
    with ExitStack() as stack:
        workers = {}
        for name in chosen:
            python = worker.pytorch_python() if name in _PYTORCH else None
            workers[name] = stack.enter_context(
                Worker(SUBJECTS[name], threads, python or sys.executable)
            )
            dtype = "bfloat16" if name in _NARROW else "float32"
            workers[name].create(dataclasses.asdict(dataclasses.replace(case, dtype=dtype)))
            for _ in range(_WARM_UP_STEPS):
                workers[name].step()
        seconds = measure.interleave({name: workers[name].step for name in workers}, rounds)
        return {
            name: BackboneMeasurement(seconds[name], workers[name].peak_memory())
            for name in workers
        }


def variants(network: str) -> list[str]:
    """The names of the variants that can be measured on this machine."""
    missing = set() if _pytorch_has(network) else set(_PYTORCH)
    if bfloat16_unit() is None:
        missing.update(_NARROW)
    return [name for name in SUBJECTS if name not in missing]


def _pytorch_has(network: str) -> bool:
    return worker.pytorch_python() is not None and network in PYTORCH_NETWORKS


def table(case: BackboneCase, measured: Mapping[str, BackboneMeasurement]) -> str:
    """Lay out the measurements of a case."""
    header = ["backbone", "ms", "from … to", "images/s", *(f"× {name}" for name in measured)]
    lines = []
    for name, own in measured.items():
        extremes = (1000 * min(own.seconds), 1000 * max(own.seconds))
        memory = "" if own.memory is None else f"{own.memory / _MEBIBYTE:,.0f}"
        lines.append(
            [
                name,
                f"{1000 * own.median:.0f}",
                "{:.0f} … {:.0f}".format(*extremes),
                f"{case.batch / own.median:.2f}",
                *(
                    f"{measure.ratio(other.seconds, own.seconds):.2f}"
                    for other in measured.values()
                ),
                memory,
            ]
        )
    return measure.markdown_table([*header, "peak memory (MiB)"], lines)


def _introduction(rounds: int) -> str:
    installed = worker.pytorch_python() is not None
    missing = "" if installed else "\n\nNot installed, hence left out: pytorch."
    return f"""# A training step of a backbone on the CPU

{measure.machine()}

Medians of {rounds} rounds, in each of which every variant takes one step: forward, backward, SGD.
"× x" is how many times as fast as x the row is in the same round. The peak memory is what the
steps take beyond the created network: gradients, momenta and feature maps.{missing}"""


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.backbone",
        description="Measure a training step of a backbone and its alternatives.",
    )
    parser.add_argument(
        "--network",
        type=lambda text: tuple(word.strip() for word in text.split(",")),
        default=_NETWORKS,
        help="names of networks (%(default)s)",
    )
    parser.add_argument(
        "--batch", type=positive_integer, help=f"images of a step ({_BATCH}; mbf 32)"
    )
    parser.add_argument(
        "--variants",
        type=lambda text: tuple(word.strip() for word in text.split(",")),
        default=tuple(SUBJECTS),
        help="names of variants, by commas (all that this machine can run)",
    )
    measure.add_options(parser)
    # A network is trained on all processors; the speed of one of them says little.
    parser.set_defaults(threads=str(visible_threads()))
    options = parser.parse_args(argv)
    for network in options.network:
        backbones.check(network)
    for variant in options.variants:
        check_name("variants", variant, SUBJECTS)
    return options


if __name__ == "__main__":
    run_program(main)
