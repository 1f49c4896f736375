"""What ``--sync-bn`` costs a training step of a backbone on the CPU.

    horovodrun -np 2 python -m benchmarks.sync_bn [tiny,mbf] [--batch B] [--rounds 7]

Every rank has each network twice, as a run has it without the option and with it, and takes a step
of each in turns: forward, backward, the sum of the gradients over the ranks, SGD. A step ends when
the slowest rank has done it. Rank 0 prints the report to the standard output.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Optional

from typing_extensions import override

import backbones
from benchmarks import measure
from benchmarks.backbone_case import BackboneCase
from benchmarks.toolkit_backbone import ToolkitBackbone
from parallel.world import World, join_ranks
from runtime.command_line import Parser, positive_integer
from runtime.environment import visible_threads
from runtime.errors import run_program

_NETWORKS = "tiny,mbf"
_BATCHES = {"tiny": 64, "mbf": 32}
_BATCH = 16
_WARM_UP_STEPS = 2


class SynchronizedBackbone(ToolkitBackbone):
    """``ToolkitBackbone`` with ``--sync-bn``."""

    @override
    def _prepare(self) -> None:
        self.backbone.synchronize(join_ranks())


SUBJECTS = {"each rank's images": ToolkitBackbone, "--sync-bn": SynchronizedBackbone}


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, and print the report on rank 0."""
    options = _parse(argv)
    world = join_ranks()
    sections: list[str] = []
    rows: list[measure.Row] = []
    for network in options.network:
        case = BackboneCase(network, options.batch or _BATCHES.get(network, _BATCH))
        title = f"{case}, ranks={world.size}, threads of each={visible_threads()}"
        measured = compare(case, world, options.rounds)
        sections += [f"## {title}", table(measured)]
        rows += [
            measure.Row(title, name, 1000 * statistics.median(own), "ms")
            for name, own in measured.items()
        ]
    if world.rank == 0:
        print("\n\n".join([_introduction(options.rounds), *sections]))
        if options.json:
            measure.write_json(options.json, rows)


def compare(case: BackboneCase, world: World, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of a step of each variant in every round, on all ranks together."""
    steps: dict[str, Callable[[], float]] = {}
    for name, factory in SUBJECTS.items():
        subject = factory(**dataclasses.asdict(case))
        steps[name] = _timed(subject.step, world)
        for _ in range(_WARM_UP_STEPS):
            steps[name]()
    return measure.interleave(steps, rounds)


def _timed(step: Callable[[], None], world: World) -> Callable[[], float]:
    def seconds() -> float:
        world.barrier()
        start = time.perf_counter()
        step()
        world.barrier()
        return time.perf_counter() - start

    return seconds


def table(measured: dict[str, list[float]]) -> str:
    """Lay out the measurements of a case."""
    (first, *_) = measured.values()
    lines = [
        [
            name,
            f"{1000 * statistics.median(own):.0f}",
            f"{1000 * min(own):.0f} … {1000 * max(own):.0f}",
            f"{measure.ratio(own, first):.2f}",
        ]
        for name, own in measured.items()
    ]
    return measure.markdown_table(["BatchNorm", "ms", "from … to", "time / first"], lines)


def _introduction(rounds: int) -> str:
    return f"""# BatchNorm by the images of all ranks

{measure.machine()}

Medians of {rounds} rounds, in each of which every variant takes one step: forward, backward, the
sum of the gradients, SGD. The last column is the median of the ratios within a round."""


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.sync_bn",
        description="Measure a training step of a backbone without and with --sync-bn.",
    )
    # Not an option: horovodrun takes --network for one of its own.
    parser.add_argument(
        "network",
        nargs="?",
        type=lambda text: tuple(word.strip() for word in text.split(",")),
        default=_NETWORKS,
        help="names of networks (%(default)s)",
    )
    parser.add_argument(
        "--batch", type=positive_integer, help=f"images of a rank ({_BATCH}; tiny 64, mbf 32)"
    )
    parser.add_argument(
        "--rounds", type=positive_integer, default=7, help="turns of each variant (%(default)s)"
    )
    parser.add_argument("--json", type=measure.file_to_write, metavar="FILE", help="write the rows")
    options = parser.parse_args(argv)
    for network in options.network:
        backbones.check(network)
    return options


if __name__ == "__main__":
    run_program(main)
