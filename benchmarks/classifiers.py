"""How fast each classifier trains, and classifies, CIFAR-10's images on the CPU, beside PyTorch.

    python -m benchmarks.classifiers [--model ResNet18,DLA] [--batch B] [--threads 2]

A training step is forward, backward and the update by SGD. PyTorch, if it is installed, computes
the same graph (``pytorch_graph``) eager and compiled, in both of its memory formats, and takes
turns with ours. The report goes to the standard output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Optional

from backbones import classifiers
from benchmarks import measure
from benchmarks.measure import Variant
from benchmarks.toolkit_subjects import write_files
from runtime.command_line import positive_integer
from runtime.environment import visible_threads
from runtime.errors import run_program

_MODELS = (
    "VGG16,ResNet18,ResNet50,ResNet101,RegNetX_200MF,RegNetY_400MF,MobileNetV2,ResNeXt29_32x4d,"
    "ResNeXt29_2x64d,SimpleDLA,DenseNet121,PreActResNet18,DPN92,DLA"
)
_WORK = ("training", "inference")
_HEADER = ("model", "ours (images/s)", "pytorch (images/s)", "× the fastest", "pytorch's forms")
_SAID = """Medians of {} rounds, in each of which every variant takes one step, in a process of its
own. A training step is forward, backward, SGD. Inference is forward alone: ours is what validation
calls, a graph made for the weights of the moment, PyTorch's the module in inference mode. "× the
fastest" is how many times as fast as the fastest of PyTorch's forms ours is, in the same round."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure and print the report."""
    options = _parse(argv)
    sections: list[str] = []
    for threads in options.threads:
        for work in _WORK:
            title = f"{work}, B={options.batch}, 32x32, float32, threads={threads}"
            lines = []
            for model in options.model:
                print(f"measuring {model}, {title}", file=sys.stderr)
                lines.append(line(model, work, options.batch, threads, options.rounds))
                # Printed at once, so that an interrupted run leaves what it has measured.
                print(*lines[-1], file=sys.stderr)
            sections += [f"## {title}", measure.markdown_table(_HEADER, lines)]
    measure.print_report("The CIFAR-10 models on the CPU", _SAID.format(options.rounds), sections)


def line(model: str, work: str, batch: int, threads: int, rounds: int) -> list[str]:
    """Measure a model in turns with PyTorch's forms of it; returns a row of the table."""
    name = work.capitalize()
    sizes = {"network": model, "batch": batch}
    ours = Variant(f"benchmarks.toolkit_subjects:Toolkit{name}", sizes)
    with TemporaryDirectory() as folder:
        write_files(model, Path(folder), batch)
        target = f"benchmarks.pytorch_subjects:PyTorch{name}"
        forms = measure.pytorch_forms("pytorch", target, {"folder": folder})
        found = measure.compare({"ours": ours, **forms}, threads, rounds)
    measured, said = measure.with_fastest(found, "pytorch")
    own, other = measured["ours"], measured.get("pytorch")
    if other is None:
        return [model, f"{batch / own.median:,.1f}", "", "", ""]
    ratio = measure.ratio(other.seconds, own.seconds)
    speeds = (f"{batch / one.median:,.1f}" for one in (own, other))
    return [model, *speeds, f"{ratio:.2f}", *said]


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = measure.parser("classifiers", __doc__, threads=visible_threads())
    add = parser.add_argument
    add("--model", type=measure.words, default=_MODELS, help="names of models (%(default)s)")
    add("--batch", type=positive_integer, default=32, help="images of a step (%(default)s)")
    options = parser.parse_args(argv)
    for model in options.model:
        classifiers.check(model)
    return options


if __name__ == "__main__":
    run_program(main)
