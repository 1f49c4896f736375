"""How long a training step of a backbone takes on the CPU, and in which variant.

    python -m benchmarks.backbone [--network r50,r100,mbf] [--batch B] [--threads 2]

Measured in turns are the backbone as this project runs it (``ours``), the graph that it exports,
with MXNet's own PReLU (``plain``), the first with ``--recompute`` (``recompute``) and with
``--dtype bfloat16`` (``bfloat16``, if the processor multiplies it), and the same graph in PyTorch
(``pytorch``, and by its autocast ``pytorch bfloat16``, if it is installed): eager and compiled, in
both memory formats, of which the fastest counts. A step is forward, backward and the update by SGD.
The report goes to the standard output.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Optional

import backbones
from benchmarks import measure
from benchmarks.measure import Case, Variant
from benchmarks.toolkit_subjects import write_files
from runtime.command_line import positive_integer
from runtime.environment import bfloat16_unit, visible_threads
from runtime.errors import run_program
from runtime.options import check_name

_OURS: dict[str, dict[str, str]] = {
    "ours": {},
    "plain": {"form": "plain"},
    "recompute": {"form": "recompute"},
    "bfloat16": {"dtype": "bfloat16"},
}
_PYTORCH = {"pytorch": "float32", "pytorch bfloat16": "bfloat16"}
_BATCH = 16
# A small network has short steps; this is the batch that one would train it with.
_BATCHES = {"mbf": 32}
_SAID = """Medians of {} rounds, in each of which every variant takes one step: forward, backward,
SGD. "× x" is how many times as fast as x the row is in the same round. The peak memory is what the
steps take beyond the created network: gradients, momenta and feature maps."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure and print the report."""
    options = _parse(argv)
    sections = measure.sections(
        _cases(options), options.rounds, column="backbone", sign="×", fastest=_PYTORCH
    )
    measure.print_report(
        "A training step of a backbone on the CPU", _SAID.format(options.rounds), sections
    )


def _cases(options: argparse.Namespace) -> Iterator[Case]:
    for network in options.network:
        batch = options.batch or _BATCHES.get(network, _BATCH)
        for threads in options.threads:
            title = f"{network}, B={batch}, 112x112, float32, threads={threads}"
            with TemporaryDirectory() as folder:
                write_files(network, Path(folder), batch)
                chosen = variants(network, batch, folder, options.variants)
                yield Case(title, threads, chosen, batch)


def variants(network: str, batch: int, folder: str, names: Sequence[str]) -> dict[str, Variant]:
    """The chosen variants that can be measured on this machine."""
    target = "benchmarks.toolkit_subjects:ToolkitTraining"
    sizes = {"network": network, "batch": batch}
    found = {name: Variant(target, {**sizes, **more}) for name, more in _OURS.items()}
    for name, dtype in _PYTORCH.items():
        arguments = {"folder": folder, "dtype": dtype}
        target = "benchmarks.pytorch_subjects:PyTorchTraining"
        found |= measure.pytorch_forms(name, target, arguments)
    return {
        name: one
        for name, one in found.items()
        if name.partition(":")[0] in names
        and (one.arguments.get("dtype") != "bfloat16" or bfloat16_unit())
    }


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    # A network is trained on all processors; the speed of one of them says little.
    parser = measure.parser("backbone", __doc__, threads=visible_threads())
    add = parser.add_argument
    add("--network", type=measure.words, default="r50,r100,mbf", help="names (%(default)s)")
    add("--batch", type=positive_integer, help=f"images of a step ({_BATCH}; mbf 32)")
    every = (*_OURS, *_PYTORCH)
    variants_help = "names of variants, by commas (all that this machine can run)"
    add("--variants", type=measure.words, default=every, help=variants_help)
    options = parser.parse_args(argv)
    for network in options.network:
        backbones.check(network)
    for variant in options.variants:
        check_name("variants", variant, every)
    return options


if __name__ == "__main__":
    run_program(main)
