"""How many CIFAR-10 images per second each classifier trains on, and classifies, on the CPU.

    python -m benchmarks.classifiers [--model ResNet18,DLA] [--batch B] [--threads 2] [--json FILE]

A training step is forward, backward and the update by SGD. The report goes to the standard output.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from backbones import classifiers
from benchmarks import measure
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


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print the report and write the rows."""
    options = _parse(argv)
    sections, rows = [_introduction(options.rounds)], []
    for threads in options.threads:
        title = f"B={options.batch}, 32x32, float32, threads={threads}"
        lines = []
        for model in options.model:
            print(f"measuring {model}, {title}", file=sys.stderr)
            speeds = {
                work: options.batch / _seconds(work, model, options.batch, threads, options.rounds)
                for work in _WORK
            }
            lines.append([model, *(f"{speed:,.1f}" for speed in speeds.values())])
            # Printed at once, so that an interrupted run leaves what it has measured.
            print(*lines[-1], file=sys.stderr)
            rows += [
                measure.Row(f"{work}, {title}", model, speed, "images/s")
                for work, speed in speeds.items()
            ]
        header = ["model", *(f"{work} (images/s)" for work in _WORK)]
        sections += [f"## {title}", measure.markdown_table(header, lines)]
    print("\n\n".join(sections))
    if options.json:
        measure.write_json(options.json, rows)


def _seconds(work: str, model: str, batch: int, threads: int, rounds: int) -> float:
    """The median time of a step, in seconds."""
    with Worker(f"benchmarks.toolkit_classifier:{_WORK[work]}", threads) as worker:
        worker.create({"model": model, "batch": batch})
        worker.step()
        return statistics.median(worker.step() for _ in range(rounds))


def _introduction(rounds: int) -> str:
    return f"""# The CIFAR-10 models on the CPU

{measure.machine()}

Medians of {rounds} steps. A training step is forward, backward, SGD; inference is forward alone."""


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
