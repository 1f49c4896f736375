"""The options of ``python -m evaluation.verification``, and which of them contradict each other."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from evaluation import originals
from evaluation.files import check_output
from evaluation.folds import FOLDS
from evaluation.network import Source, add_network, checkpoint_or_onnx, files_of
from runtime.command_line import Parser, positive_integer
from runtime.errors import DataError
from runtime.process.terminal import print_line

_SUFFIX = ".bin"
# InsightFace's, without --target.
_NAMES = ("lfw", "cfp_ff", "cfp_fp", "agedb_30")
# Options about one network.
_OF_ONE = ("roc_table", "far", "groups", "by_set", "json", "roc", "bad_cases", "hardest")


def parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """Return the options; without ``argv``, of this process's command line.

    Raises:
        ConfigError: an option is unknown, malformed, or contradicts another.
    """
    parser = Parser(
        prog="python -m evaluation.verification",
        description="Verify pairs of faces with a trained network: docs/verification.md.",
        foreign=originals.VERIFICATION,
    )
    _add_inputs(parser)
    _add_outputs(parser)
    options = parser.parse_args(argv)
    if options.target is None and options.data_dir is None:
        parser.error("the following arguments are required: --target")
    options.target = _find_sets(options.target or [",".join(_NAMES)], options.data_dir)
    _check(parser, options)
    return options


def _find_sets(words: Sequence[str], folder: Optional[Path]) -> list[Path]:
    """Return the files of sets, given as files or as InsightFace gives them: names in a folder.

    Raises:
        DataError: none of the names has a file, or there is no name.
    """
    found: list[Path] = []
    gone: list[str] = []
    for word in words:
        is_file = word.endswith(_SUFFIX) and "," not in word
        if folder is None and (is_file or os.path.isfile(word)):
            found.append(Path(word))
            continue
        names = [name.removesuffix(_SUFFIX) for name in word.split(",") if name]
        for path in ((folder or Path()) / f"{name}{_SUFFIX}" for name in names):
            if os.path.isfile(path):
                found.append(path)
            else:
                gone.append(str(path))
    if not found:
        raise DataError(
            f"--target {' '.join(words)!r} names no set that exists (looked for "
            f"{', '.join(gone) or 'none'}); give files, or names with their folder as --data-dir"
        )
    if gone:
        count = len(found) + len(gone)
        print_line(
            f"warning: {len(gone)} of {count} sets left out, which do not exist: {', '.join(gone)}",
            file=sys.stderr,
        )
    return found


def check_outputs(options: argparse.Namespace) -> None:
    """Refuse files that cannot be written.

    Raises:
        ConfigError: a file is a folder, or one that is read.
        DataError: a folder cannot be made or written.
    """
    read = [*options.target, *(options.groups or ())]
    read += [file for model in options.model for file in files_of(model)]
    files = {"--json": options.json, "--roc": options.roc}
    for name, folder in (("--bad-cases", options.bad_cases), ("--hardest", options.hardest)):
        files[name] = folder and folder / "sheet"
    for name, path in files.items():
        if path is not None:
            check_output(path, name, read)


def _add_inputs(parser: Parser) -> None:
    epochs_help = "; several epochs as PREFIX,0|1"
    add_network(parser, convert=_networks, more_help=epochs_help)
    add = parser.add_argument
    gpu_help = (
        "refuse a host without a GPU, instead of embedding on its processor; of several the one "
        "that CUDA_VISIBLE_DEVICES shows first is taken"
    )
    add("--gpu", nargs="?", type=_gpu, const=0, metavar="0", help=gpu_help)
    target_help = "the pairs; of several sets each, as files or as names in --data-dir: lfw,cfp_fp"
    add("--target", nargs="+", metavar="FILE.bin", help=target_help)
    folder_help = f"the folder of the sets that --target names ({','.join(_NAMES)})"
    add("--data-dir", type=Path, metavar="DIR", help=folder_help)
    folds_help = "parts of the pairs, each judged with the threshold of all others (%(default)s)"
    add("--nfolds", type=positive_integer, default=FOLDS, metavar="N", help=folds_help)


def _networks(text: str) -> list[Source]:
    """Convert PREFIX,EPOCH, FILE.onnx, or several epochs: PREFIX,0|1."""
    prefix, comma, epochs = text.rpartition(",")
    if comma and "|" in epochs:
        return [checkpoint_or_onnx(f"{prefix},{epoch}") for epoch in epochs.split("|")]
    return [checkpoint_or_onnx(text)]


def _gpu(text: str) -> int:
    if text != "0":
        raise argparse.ArgumentTypeError(
            f"{text!r} chooses no GPU here: set CUDA_VISIBLE_DEVICES={text} before the command, "
            "and give --gpu 0"
        )
    return 0


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
    onnx = next((model for model in options.model if isinstance(model, Path)), None)
    if options.gpu is not None and onnx is not None:
        parser.error(
            f"--gpu: ONNX Runtime computes {onnx} on the processor; leave it out, or name a "
            "checkpoint"
        )
    for field in _OF_ONE:
        if len(options.model) > 1 and getattr(options, field):
            name = field.replace("_", "-")
            parser.error(f"--{name}: it is about one network; give one epoch, as in PREFIX,0")
    for field in ("far", "groups", "by_set"):
        if options.nfolds != FOLDS and getattr(options, field):
            name = field.replace("_", "-")
            parser.error(f"--{name}: it has {FOLDS} folds; leave out --nfolds {options.nfolds}")


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
