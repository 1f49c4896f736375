"""How fast each classifier trains, and classifies, CIFAR-10's images on the CPU, beside PyTorch.

    python -m benchmarks.classifiers [--model ResNet18,DLA] [--batch B] [--threads 2] [--json FILE]

A training step is forward, backward and the update by SGD. PyTorch, if it is installed, computes
the same graph (``pytorch_graph``) in both of its memory formats, and takes turns with ours. The
report goes to the standard output.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from backbones import classifiers
from benchmarks import measure, toolkit_classifier, worker
from benchmarks.worker import Worker
from runtime.command_line import Parser, positive_integer
from runtime.environment import visible_threads
from runtime.errors import run_program

_MODELS = (
    "VGG16,ResNet18,ResNet50,ResNet101,RegNetX_200MF,RegNetY_400MF,MobileNetV2,ResNeXt29_32x4d,"
    "ResNeXt29_2x64d,SimpleDLA,DenseNet121,PreActResNet18,DPN92,DLA"
)
_BATCH = 32
_WORK = {"training": "ClassifierTraining", "inference": "ClassifierInference"}
_PYTORCH = {"pytorch": False, "pytorch, channels last": True}
_HEADER = ["model", "ours (images/s)", *_PYTORCH, "× the faster"]
_UNIT = "images/s"
_WARM_UP_STEPS = 2


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print the report and write the rows."""
    options = _parse(argv)
    sections, rows = [_introduction(options.rounds)], []
    for threads in options.threads:
        lines: dict[str, list[list[str]]] = {work: [] for work in _WORK}
        for model, (work, subject) in itertools.product(options.model, _WORK.items()):
            title = f"{work}, B={options.batch}, 32x32, float32, threads={threads}"
            print(f"measuring {model}, {title}", file=sys.stderr)
            seconds = compare(subject, model, options.batch, threads, options.rounds)
            lines[work].append(line(model, options.batch, seconds))
            # Printed at once, so that an interrupted run leaves what it has measured.
            print(*lines[work][-1], file=sys.stderr)
            rows += [
                measure.Row(
                    f"{model}, {title}", name, options.batch / statistics.median(own), _UNIT
                )
                for name, own in seconds.items()
            ]
        for work, measured in lines.items():
            sections.append(f"## {work}, B={options.batch}, 32x32, float32, threads={threads}")
            sections.append(measure.markdown_table(_HEADER, measured))
    print("\n\n".join(sections))
    if options.json:
        measure.write_json(options.json, rows)


def compare(
    subject: str, model: str, batch: int, threads: int, rounds: int
) -> dict[str, list[float]]:
    """Measure one step of each variant per round: the seconds, each in a process of its own."""
    python = worker.pytorch_python()
    with ExitStack() as stack:
        workers = {
            "ours": stack.enter_context(Worker(f"benchmarks.toolkit_classifier:{subject}", threads))
        }
        workers["ours"].create({"model": model, "batch": batch})
        if python is not None:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            toolkit_classifier.write_graph(model, folder)
            for name, is_channels_last in _PYTORCH.items():
                target = f"benchmarks.pytorch_classifier:{subject}"
                workers[name] = stack.enter_context(Worker(target, threads, python))
                workers[name].create(
                    {"folder": str(folder), "batch": batch, "channels_last": is_channels_last}
                )
        for one in workers.values():
            for _ in range(_WARM_UP_STEPS):
                one.step()
        return measure.interleave({name: workers[name].step for name in workers}, rounds)


def line(model: str, batch: int, seconds: Mapping[str, Sequence[float]]) -> list[str]:
    """A row of the table: speeds, and the median of the ratios to the faster of PyTorch's forms."""
    speeds = {name: batch / statistics.median(own) for name, own in seconds.items()}
    theirs = [name for name in _PYTORCH if name in speeds]
    cells = [f"{speeds[name]:,.1f}" if name in speeds else "" for name in ("ours", *_PYTORCH)]
    if not theirs:
        return [model, *cells, ""]
    best = max(theirs, key=speeds.__getitem__)
    return [model, *cells, f"{measure.ratio(seconds[best], seconds['ours']):.2f}"]


def _introduction(rounds: int) -> str:
    return f"""# The CIFAR-10 models on the CPU

{measure.machine()}

Medians of {rounds} rounds, in each of which every variant takes one step, in a process of its own.
A training step is forward, backward, SGD. Inference is forward alone: ours is what validation
calls, a graph made for the weights of the moment, PyTorch's the module in inference mode. "× the
faster" is how many times as fast as the faster of PyTorch's memory formats ours is, in the same
round."""


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.classifiers", description="Measure the CIFAR-10 models."
    )
    parser.add_argument(
        "--model",
        type=lambda text: tuple(word.strip() for word in text.split(",")),
        default=_MODELS,
        help="names of models (%(default)s)",
    )
    parser.add_argument(
        "--batch", type=positive_integer, default=_BATCH, help="images of a step (%(default)s)"
    )
    measure.add_options(parser)
    parser.set_defaults(threads=str(visible_threads()))
    options = parser.parse_args(argv)
    for model in options.model:
        classifiers.check(model)
    return options


if __name__ == "__main__":
    run_program(main)
