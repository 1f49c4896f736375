"""Verify sets of pairs with a trained network.

    python -m evaluation.verification --model models/run/model,0 --target lfw.bin cfp_fp.bin

prints a line for each set. The options add what the line cannot say: the whole ROC, thresholds for
use, groups of people, and pictures of what is hard.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from data.verification.bin_file import VerificationSet, read_bin
from evaluation.files import write_output
from evaluation.network import FaceNetwork, open_network
from evaluation.verification import check_pairs, embed_pairs
from evaluation.verification.groups import read_groups
from evaluation.verification.options import check_outputs, parse
from evaluation.verification.pictures import draw_roc, write_bad_cases, write_hardest
from evaluation.verification.report import GroupReport, SetReport, compare_sets, roc_lines
from runtime.environment import prepare_lanes
from runtime.errors import ConfigError, run_program
from runtime.process.terminal import print_line


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Verify the pairs of files with a network, print the results and write what is asked for."""
    options = parse(argv)
    prepare_lanes()
    # What is wrong with any file is said before the first set is embedded, which takes minutes.
    check_outputs(options)
    targets = [read_bin(path) for path in options.target]
    for target in targets:
        check_pairs(target, options.nfolds)
    groups = [
        path and read_groups(path, len(target.same), target.name)
        for path, target in zip(options.groups or [None] * len(targets), targets)
    ]
    # Each epoch with all other options.
    chosen = [argparse.Namespace(**{**vars(options), "model": model}) for model in options.model]
    device = _device(chosen[0])
    network, *others = (open_network(one, device) for one in chosen)
    if others:
        _compare([network, *others], targets, options)
        return
    reports, tables = [], []
    for target, names in zip(targets, groups):
        report = _verify(network, target, options)
        found = GroupReport(report.name, report.pairs, options.far, names)
        _print([*(roc_lines(report.name, report.curve) * options.roc_table), *found.lines()])
        if options.hardest:
            _print(write_hardest(options.hardest, target, report.pairs, report.threshold))
        reports.append(report)
        if options.json:
            tables.append({**report.to_json(), **found.to_json(), "file": str(target.path)})
    # As MXNet writes it.
    results: dict[str, Any] = {"device": str(device or "cpu(0)"), "sets": tables}
    if options.by_set:
        by_set = compare_sets(reports, options.far)
        _print(by_set.lines())
        results["all_sets"] = by_set.to_json()
    if options.roc:
        curves = {report.name: report.curve for report in reports}
        write_output(options.roc, draw_roc(curves), "--roc")
        print_line(f"{options.roc}: the ROC of {', '.join(curves)}")
    if options.json:
        _write_json(options, network, results)


def _device(options: argparse.Namespace) -> Any:
    """Return MXNet's context, or None for an ONNX file, which is computed on the processor."""
    if isinstance(options.model, Path):
        return None
    from parallel.world import LoneWorld
    from runtime import devices

    device = devices.choose(LoneWorld(), options.dtype)
    if options.gpu is not None and devices.is_host(device):
        raise ConfigError("--gpu: this process sees no GPU; leave it out, or see docs/gpu.md")
    return device


def _verify(
    network: FaceNetwork, target: VerificationSet, options: argparse.Namespace
) -> SetReport:
    """Embed a set, print its line and write its bad cases."""
    embeddings, xnorm = embed_pairs(
        network.extract,
        target,
        batch_size=options.batch_size,
        flip=not options.no_flip,
        image_size=network.image_size,
    )
    report = SetReport(target.name, embeddings, target.same, xnorm=xnorm, folds=options.nfolds)
    which = f" by {network.name}" if len(options.model) > 1 else ""
    print_line(f"{target.name}{which}: {report.result}", flush=True)
    if options.bad_cases:
        _print(write_bad_cases(options.bad_cases, target, report.pairs))
    return report


def _compare(
    networks: Sequence[FaceNetwork], targets: Sequence[VerificationSet], options: argparse.Namespace
) -> None:
    """Print the line of each network for each set, and the best."""
    for target in targets:
        found = [_verify(network, target, options).result.accuracy for network in networks]
        best = max(range(len(found)), key=found.__getitem__)
        print_line(f"{target.name}: best accuracy {found[best]:.4f}, of {networks[best].name}")


def _write_json(options: argparse.Namespace, network: FaceNetwork, results: dict[str, Any]) -> None:
    content = {
        "model": network.name,
        "options": {
            "flip": not options.no_flip,
            "image_size": list(network.image_size),
            "batch_size": options.batch_size,
            "dtype": options.dtype,
            "folds": options.nfolds,
        },
        **results,
    }
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_output(options.json, text.encode(), "--json")
    count = len(results["sets"])
    print_line(f"{options.json}: {count} verified set{'s' * (count > 1)}")


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        print_line(line)


if __name__ == "__main__":
    run_program(main)
