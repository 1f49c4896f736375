"""Which of oneDNN's kernels compute a step of a network, and how long each takes.

    python -m benchmarks.kernels NETWORK [--batch B] [--dtype bfloat16] [--work inference]

A step of a backbone or classifier runs in a process of its own with ``DNNL_VERBOSE=1``. The report
has a row for each kind of primitive and implementation; it names reference implementations, which
take up to a hundred times as long as others, and counts reorders, which move maps or kernels into
other layouts. What the step takes beyond oneDNN's primitives is MXNet's: its own operators, the
update, and what the engine costs. The report goes to the standard output.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import backbones
from backbones import classifiers
from benchmarks import measure, onednn_log
from benchmarks.onednn_log import Primitive
from benchmarks.worker import Worker
from runtime.command_line import Parser, positive_integer
from runtime.environment import visible_threads
from runtime.errors import ConfigError, did_you_mean, run_program

_BATCH = 32
_WARM_UP_STEPS = 2
_LOG_ON = {"DNNL_VERBOSE": "1"}
_BACKBONES = {
    "training": "benchmarks.toolkit_backbone:ToolkitBackbone",
    "inference": "benchmarks.toolkit_inference:GraphOfInference",
}
_CLASSIFIERS = {
    "training": "benchmarks.toolkit_classifier:ClassifierTraining",
    "inference": "benchmarks.toolkit_classifier:ClassifierInference",
}
WORK = tuple(_BACKBONES)


@dataclass(frozen=True)
class Step:
    """A step of a network.

    Attributes:
        primitives: what oneDNN executed, in this order.
        milliseconds: of the whole step.
    """

    primitives: tuple[Primitive, ...]
    milliseconds: float

    @property
    def onednn(self) -> float:
        """Milliseconds of all primitives."""
        return sum(one.milliseconds for one in self.primitives)

    @property
    def references(self) -> list[Primitive]:
        """Those of reference implementations."""
        return [one for one in self.primitives if one.is_reference]

    @property
    def moved_maps(self) -> list[Primitive]:
        """The reorders of feature maps and their gradients."""
        return [one for one in self.primitives if one.moves_maps]

    @property
    def moved_kernels(self) -> list[Primitive]:
        """The reorders of kernels and their gradients."""
        return [one for one in self.primitives if one.moves_kernel]


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print the report and write the rows."""
    options = _parse(argv)
    sections, rows = [], []
    for threads in options.threads:
        for work in options.work:
            title = (
                f"{options.network}, {work}, B={options.batch}, {options.dtype}, threads={threads}"
            )
            print(f"measuring {title}", file=sys.stderr)
            target, arguments = subject(options.network, work, options.batch, options.dtype)
            taken = steps(target, arguments, threads, options.rounds)
            # The one of median length, so that its parts add up.
            step = sorted(taken, key=lambda one: one.milliseconds)[len(taken) // 2]
            sections += [f"## {title}", report(step)]
            rows += [
                measure.Row(title, "step", statistics.median(t.milliseconds for t in taken), "ms"),
                measure.Row(title, "oneDNN", statistics.median(t.onednn for t in taken), "ms"),
                measure.Row(title, "reference implementations", len(step.references), ""),
                measure.Row(title, "reorders of maps", len(step.moved_maps), ""),
            ]
    print("\n\n".join([_introduction(options.rounds), *sections]))
    if options.json:
        measure.write_json(options.json, rows)


def subject(
    network: str, work: str, batch: int, dtype: str = "float32"
) -> tuple[str, dict[str, Any]]:
    """Return what a ``Worker`` runs for a backbone or classifier, and its arguments.

    The work is one of ``WORK``, the batch the images of a step.
    """
    if network in backbones.names():
        return _BACKBONES[work], {"network": network, "batch": batch, "dtype": dtype}
    return _CLASSIFIERS[work], {"model": network, "batch": batch, "dtype": dtype}


def steps(target: str, arguments: Mapping[str, Any], threads: int, rounds: int = 1) -> list[Step]:
    """Take steps in a process of its own.

    Args:
        target: "module:Class" of a ``Subject``.
        arguments: of the class.
        threads: how many threads the libraries may use.
        rounds: how many steps, behind those that warm up.

    Raises:
        LogError: oneDNN prints something else than version 2.4.4.
    """
    with NamedTemporaryFile() as log:
        with Worker(target, threads, variables=_LOG_ON, output=log) as worker:
            worker.create(arguments)
            for _ in range(_WARM_UP_STEPS):
                worker.step()
            return [_step(worker.step, Path(log.name)) for _ in range(rounds)]


def _step(step: Callable[[], float], log: Path) -> Step:
    """Take a step; what it has printed is in the log when it returns."""
    before = log.stat().st_size
    milliseconds = 1000 * step()
    text = log.read_bytes()[before:].decode(errors="replace")
    return Step(tuple(onednn_log.read(text.splitlines())), milliseconds)


def report(step: Step) -> str:
    """The table of a step, and below it what should not be there."""
    header = ["kind", "implementation", "count", "ms", "share of the step"]
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in step.primitives:
        groups[one.kind, one.title].append(one.milliseconds)
    ordered = sorted(groups.items(), key=lambda item: -sum(item[1]))
    lines = [
        [kind, title, str(len(times)), *_part(sum(times), step)] for (kind, title), times in ordered
    ]
    lines += [
        ["oneDNN", "", str(len(step.primitives)), *_part(step.onednn, step)],
        ["MXNet", "", "", *_part(step.milliseconds - step.onednn, step)],
        ["step", "", "", *_part(step.milliseconds, step)],
    ]
    found = [_listed("reference implementations", step.references, step)]
    found.append(_listed("reorders of maps", step.moved_maps, step, by_name=False))
    found.append(_listed("reorders of kernels", step.moved_kernels, step, by_name=False))
    return measure.markdown_table(header, lines) + "\n\n" + "\n".join(found)


def _part(milliseconds: float, step: Step) -> tuple[str, str]:
    return f"{milliseconds:,.1f}", f"{milliseconds / step.milliseconds:.1%}"


def _listed(name: str, found: Sequence[Primitive], step: Step, *, by_name: bool = True) -> str:
    """A line with the number of primitives of a sort, their time, and each of them."""
    total, share = _part(sum(one.milliseconds for one in found), step)
    line = f"- {name}: {len(found)}" + (f", {total} ms, {share}" if found else "")
    return "\n".join([line, *(f"  - {described(one)}" for one in (found if by_name else ()))])


def described(one: Primitive) -> str:
    """A primitive in one line."""
    layouts = " ".join(f"{name}:{layout}" for name, layout in one.layouts)
    return f"{one.kind} {one.title}, {layouts}, {one.problem}, {one.milliseconds:.2f} ms"


def _introduction(rounds: int) -> str:
    return f"""# Kernels of a step on the CPU

{measure.machine()}

The step of median length of {rounds}, in a process of its own with `DNNL_VERBOSE=1`. A training
step is forward, backward and the update by SGD. MXNet is what is left of the step: its own
operators, the update, the engine, and the printing of this log."""


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.kernels", description="Show which kernels compute a network."
    )
    parser.add_argument("network", help="a backbone (r50, mbf) or a classifier (MobileNetV2)")
    parser.add_argument(
        "--batch", type=positive_integer, default=_BATCH, help="images of a step (%(default)s)"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of maps and products; bfloat16 on a CPU with AVX512_BF16 or AMX (%(default)s)",
    )
    parser.add_argument(
        "--work", choices=WORK, action="append", help="training or inference (both)"
    )
    measure.add_options(parser)
    parser.set_defaults(threads=(visible_threads(),), rounds=3)
    options = parser.parse_args(argv)
    options.work = options.work or list(WORK)
    _check(options.network)
    return options


def _check(network: str) -> None:
    names: Iterable[Any] = [*backbones.names(), *classifiers.names()]
    if network not in names:
        raise ConfigError(
            f"network {network!r} is unknown{did_you_mean(network, list(names))}; there are the "
            "backbones of train.py --network and the classifiers of classify.py --model"
        )


if __name__ == "__main__":
    run_program(main)
