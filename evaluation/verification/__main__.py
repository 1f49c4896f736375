"""Verify sets of pairs with a trained network.

    python -m evaluation.verification --model models/run/model,0 --target lfw.bin cfp_fp.bin

prints a line for each set. The options add what the line cannot say: the whole ROC, thresholds for
use, groups of people, and pictures of what is hard.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from data.verification.bin_file import VerificationSet, read_bin
from evaluation.features import FaceNetwork
from evaluation.files import check_output, write_output
from evaluation.network import device_of, files_of, open_network
from evaluation.options import Source, add_network, check_names, checkpoint_or_onnx, share
from evaluation.verification import check_pairs, embed_pairs
from evaluation.verification.curves import FOLDS, pairs_of
from evaluation.verification.pictures import draw_roc, write_bad_cases, write_hardest
from evaluation.verification.report import (
    SetReport,
    read_groups,
    report_rates,
    report_sets,
    roc_lines,
)
from runtime.command_line import Parser, positive_integer
from runtime.environment import prepare_lanes
from runtime.errors import ConfigError, DataError, print_line, run_program

# InsightFace's, without --target.
_NAMES = ("lfw", "cfp_ff", "cfp_fp", "agedb_30")
# Options about one network.
_OF_ONE = ("roc_table", "far", "groups", "by_set", "json", "roc", "bad_cases", "hardest")


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m evaluation.verification",
        description="Verify pairs of faces with a trained network, or with several epochs of one, "
        "as PREFIX,0|1: docs/verification.md.",
    )
    add_network(parser, convert=_networks)
    add = parser.add_argument
    gpu_help = (
        "refuse a host without a GPU, instead of embedding on its processor; of several the one "
        "that CUDA_VISIBLE_DEVICES shows first is taken"
    )
    add("--gpu", nargs="?", choices=("0",), const="0", metavar="0", help=gpu_help)
    target_help = "the pairs; of several sets each, as files or as names in --data-dir: lfw,cfp_fp"
    add("--target", nargs="+", metavar="FILE.bin", help=target_help)
    folder_help = f"the folder of the sets that --target names ({','.join(_NAMES)})"
    add("--data-dir", type=Path, metavar="DIR", help=folder_help)
    folds_help = "parts of the pairs, each judged with the threshold of all others (%(default)s)"
    add("--nfolds", type=positive_integer, default=FOLDS, metavar="N", help=folds_help)
    _add_outputs(parser)
    options = parser.parse_args(argv)
    if options.target is None and options.data_dir is None:
        parser.error("the following arguments are required: --target")
    options.target = _find_sets(options.target or [",".join(_NAMES)], options.data_dir)
    _check(parser, options)
    return options


def _networks(text: str) -> list[Source]:
    """Convert PREFIX,EPOCH, FILE.onnx, or several epochs: PREFIX,0|1."""
    prefix, comma, epochs = text.rpartition(",")
    if comma and "|" in epochs:
        return [checkpoint_or_onnx(f"{prefix},{epoch}") for epoch in epochs.split("|")]
    return [checkpoint_or_onnx(text)]


def _add_outputs(parser: Parser) -> None:
    add = parser.add_argument
    roc_table_help = "print AUC, EER and the TAR at FAR 1e-6 to 0.1"
    add("--roc-table", action="store_true", help=roc_table_help)
    far_help = "print the cosine for this FAR, and the FAR that it keeps on held-out folds"
    add("--far", nargs="+", type=share, default=[], metavar="X", help=far_help)
    groups = parser.add_mutually_exclusive_group()
    groups_help = "the group of each pair, a line per pair; a file for each set: print a table"
    groups.add_argument("--groups", nargs="+", type=Path, metavar="FILE", help=groups_help)
    by_set_help = "each set is a group, as the four of RFW: print one table of them"
    groups.add_argument("--by-set", action="store_true", help=by_set_help)
    add("--json", type=Path, metavar="FILE", help="write all of this as JSON")
    add("--roc", type=Path, metavar="FILE.png", help="draw the ROC of all sets")
    bad_cases_help = "write the wrongly judged pairs there: a list, and a sheet of each kind"
    add("--bad-cases", type=Path, metavar="DIR", help=bad_cases_help)
    hardest_help = "draw the least similar pairs of one person, and the most similar of two people"
    add("--hardest", type=Path, metavar="DIR", help=hardest_help)


def _find_sets(words: Sequence[str], folder: Optional[Path]) -> list[Path]:
    """Return the files of sets, given as files or as InsightFace gives them: names in a folder."""
    if folder is None:
        return list(map(Path, words))
    names = [name.removesuffix(".bin") for word in words for name in word.split(",") if name]
    paths = [folder / f"{name}.bin" for name in names]
    found = [path for path in paths if os.path.isfile(path)]
    gone = ", ".join(str(path) for path in paths if path not in found)
    if not found:
        raise DataError(
            f"--target {' '.join(words)!r} names no set in --data-dir {folder} (looked for "
            f"{gone or 'none'}); give another folder, or files without --data-dir"
        )
    if gone:
        print_line(f"warning: sets left out, which do not exist: {gone}", file=sys.stderr)
    return found


def _check(parser: Parser, options: argparse.Namespace) -> None:
    names = [path.stem for path in options.target]
    check_names("--target", names)
    if options.groups is not None and len(options.groups) != len(names):
        parser.error(
            f"--groups: {len(options.groups)} files for {len(names)} sets; give one for each, in "
            "the order of --target"
        )
    if options.roc is not None and options.roc.suffix.lower() != ".png":
        parser.error(f"--roc: {options.roc} is no PNG; give a name that ends with .png")
    for field in filter(vars(options).get, _OF_ONE):
        name = field.replace("_", "-")
        if len(options.model) > 1:
            parser.error(f"--{name}: it is about one network; give one epoch, as in PREFIX,0")
        if options.nfolds != FOLDS and field in ("far", "groups", "by_set"):
            parser.error(f"--{name}: it has {FOLDS} folds; leave out --nfolds {options.nfolds}")


def _check_outputs(options: argparse.Namespace) -> None:
    """Refuse files that cannot be written, before minutes of work."""
    read = [*options.target, *(options.groups or ())]
    read += [file for model in options.model for file in files_of(model)]
    files = {"--json": options.json, "--roc": options.roc}
    for name, folder in (("--bad-cases", options.bad_cases), ("--hardest", options.hardest)):
        files[name] = folder and folder / "sheet"
    for name, path in files.items():
        if path is not None:
            check_output(path, name, read)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Verify the pairs of files with a network, print the results and write what is asked for."""
    options = _parse(argv)
    prepare_lanes()
    # What is wrong with any file is said before the first set is embedded, which takes minutes.
    _check_outputs(options)
    targets = [read_bin(path) for path in options.target]
    for target in targets:
        check_pairs(target, options.nfolds)
    groups = [
        path and read_groups(path, len(target.same), target.name)
        for path, target in zip(options.groups or [None] * len(targets), targets)
    ]
    networks = _open_networks(options)
    reports: list[SetReport] = []
    results: dict[str, Any] = {
        "model": networks[0].name,
        "options": {
            "flip": not options.no_flip,
            "image_size": list(networks[0].image_size),
            "batch_size": options.batch_size,
            "dtype": options.dtype,
            "folds": options.nfolds,
        },
        "sets": [],
    }
    for target, names in zip(targets, groups):
        found = [_verify(network, target, options) for network in networks]
        if len(networks) > 1:
            best = max(range(len(found)), key=lambda number: found[number].result.accuracy)
            accuracy = found[best].result.accuracy
            print_line(f"{target.name}: best accuracy {accuracy:.4f}, of {networks[best].name}")
            continue
        reports += found
        results["sets"].append(_report(found[0], target, names, options))
    if options.by_set:
        lines, results["all_sets"] = report_sets(reports, options.far)
        _print(lines)
    if options.roc:
        curves = {report.name: report.curve for report in reports}
        write_output(options.roc, draw_roc(curves), "--roc")
    if options.json:
        text = json.dumps(results, indent=2, allow_nan=False) + "\n"
        write_output(options.json, text.encode(), "--json")


def _open_networks(options: argparse.Namespace) -> list[FaceNetwork]:
    """Open the network of each epoch, with all other options."""
    # Here, because rooms meet in programs only.
    from parallel.world import LoneWorld
    from runtime import devices

    chosen = [argparse.Namespace(**{**vars(options), "model": model}) for model in options.model]
    device = device_of(chosen[0], LoneWorld())
    if options.gpu is not None and (device is None or devices.is_host(device)):
        raise ConfigError(
            "--gpu: this process sees no GPU, or computes an ONNX file, which the processor does; "
            "leave it out, or see docs/gpu.md"
        )
    return [open_network(one, device) for one in chosen]


def _verify(
    network: FaceNetwork, target: VerificationSet, options: argparse.Namespace
) -> SetReport:
    """Embed a set, and print its line."""
    embeddings, xnorm = embed_pairs(network, target)
    pairs = pairs_of(embeddings, target.same, options.nfolds)
    report = SetReport(target.name, pairs, xnorm=xnorm)
    which = f" by {network.name}" if len(options.model) > 1 else ""
    print_line(f"{target.name}{which}: {report.result}", flush=True)
    return report


def _report(
    report: SetReport,
    target: VerificationSet,
    groups: Optional[Sequence[str]],
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Print and draw what options ask for about a set; return its table for ``--json``."""
    lines, rates = report_rates(report.name, report.pairs, options.far, groups)
    _print([*(roc_lines(report.name, report.curve) * options.roc_table), *lines])
    if options.bad_cases:
        print_line(write_bad_cases(options.bad_cases, target, report.pairs))
    if options.hardest:
        write_hardest(options.hardest, target, report.pairs)
    return {**report.to_json(), **rates, "file": str(target.path)} if options.json else {}


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        print_line(line)


if __name__ == "__main__":
    run_program(main)
