"""The options of ``python -m evaluation.verification``, and which of them contradict each other."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from evaluation.network import add_network
from evaluation.output_files import check_output
from runtime.command_line import Parser


def parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Return the options; without ``argv``, of this process's command line.

    Raises:
        ConfigError: an option is unknown, malformed, or contradicts another.
    """
    parser = Parser(
        prog="python -m evaluation.verification",
        description="Verify pairs of faces with a trained network: docs/verification.md.",
    )
    _add_inputs(parser)
    _add_outputs(parser)
    options = parser.parse_args(argv)
    _check(parser, options)
    return options


def check_outputs(options: argparse.Namespace) -> None:
    """Refuse files that cannot be written.

    Raises:
        ConfigError: a file is a folder.
        DataError: a folder cannot be made or written.
    """
    files = {"--json": options.json, "--roc": options.roc}
    for name, folder in (("--bad-cases", options.bad_cases), ("--hardest", options.hardest)):
        files[name] = folder and folder / "sheet"
    for name, path in files.items():
        if path is not None:
            check_output(path, name)


def _add_inputs(parser: Parser) -> None:
    add_network(parser)
    add = parser.add_argument
    gpu_help = (
        "refuse a host without a GPU, instead of embedding on its processor; of several the one "
        "that CUDA_VISIBLE_DEVICES shows first is taken"
    )
    add("--gpu", action="store_true", help=gpu_help)
    target_help = "the pairs; of several sets each"
    add("--target", required=True, nargs="+", type=Path, metavar="FILE.bin", help=target_help)


def _add_outputs(parser: Parser) -> None:
    add = parser.add_argument
    roc_table_help = "print AUC, EER and the TAR at FAR 1e-6 to 0.1"
    add("--roc-table", action="store_true", help=roc_table_help)
    far_help = "print the cosine for this FAR, and the FAR that it keeps on held-out folds"
    add("--far", nargs="+", type=_far, default=[], metavar="X", help=far_help)
    groups_help = "the group of each pair, a line per pair; a file for each set: print a table"
    add("--groups", nargs="+", type=Path, metavar="FILE", help=groups_help)
    by_set_help = "each set is a group, as the four of RFW: print one table of them"
    add("--by-set", action="store_true", help=by_set_help)
    add("--json", type=Path, metavar="FILE", help="write all of this as JSON")
    add("--roc", type=Path, metavar="FILE.png", help="draw the ROC of all sets")
    bad_cases_help = "write the wrongly judged pairs there: a list, and a sheet of each kind"
    add("--bad-cases", type=Path, metavar="DIR", help=bad_cases_help)
    hardest_help = "draw the least similar pairs of one person, and the most similar of two people"
    add("--hardest", type=Path, metavar="DIR", help=hardest_help)


def _check(parser: Parser, options: argparse.Namespace) -> None:
    names = [path.stem for path in options.target]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        parser.error(f"--target: two sets are called {twice!r}; give each another file name")
    if options.groups is not None and len(options.groups) != len(names):
        parser.error(
            f"--groups: {len(options.groups)} files for {len(names)} sets; give one for each, in "
            "the order of --target"
        )
    if options.roc is not None and options.roc.suffix.lower() != ".png":
        parser.error(f"--roc: {options.roc} is no PNG; give a name that ends with .png")
    if options.by_set and options.groups is not None:
        parser.error("--by-set: each set is a group, and --groups names others; leave out one")
    if options.by_set and len(names) == 1:
        parser.error("--by-set: one set is one group; name several sets as --target, or --groups")
    if options.gpu and isinstance(options.model, Path):
        parser.error(
            f"--gpu: ONNX Runtime computes {options.model} on the processor; leave it out, or name "
            "a checkpoint"
        )


def _far(value: str) -> float:
    try:
        far = float(value)
    except ValueError:
        far = 0.0
    if not 0 < far < 1:
        raise argparse.ArgumentTypeError(
            f"{value!r} is no share between 0 and 1; write it as in 0.001 or 1e-4"
        )
    return far
