"""Verify sets of pairs with a trained network.

    python -m evaluation.verification --model models/run/model,0 --target lfw.bin cfp_fp.bin

prints a line for each set. The options add what the line cannot say: the whole ROC, thresholds for
use, groups of people, and pictures of what is hard.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from evaluation.bad_cases import judge, write_bad_cases
from evaluation.output_files import write_output
from evaluation.verification import FACE_SIZE, Extract, check_pairs, embed_pairs
from evaluation.verification.groups import read_groups
from evaluation.verification.onnx_file import open_onnx
from evaluation.verification.options import check_outputs, parse
from evaluation.verification.pictures import draw_roc, write_hardest
from evaluation.verification.report import (
    SetReport,
    group_lines,
    group_table,
    roc_lines,
    threshold_lines,
    threshold_table,
)
from runtime.errors import ConfigError, run_program

if TYPE_CHECKING:
    from data.verification.bin_file import VerificationSet


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Verify the pairs of files with a network, print the results and write what is asked for."""
    options = parse(argv)
    # Here, because rooms meet in programs only.
    from data.verification.bin_file import read_bin

    # What is wrong with any file is said before the first set is embedded, which takes minutes.
    check_outputs(options)
    targets = [read_bin(path) for path in options.target]
    for target in targets:
        check_pairs(target)
    groups: list[list[str]] = [
        read_groups(path, len(target.same), target.name)
        for path, target in zip(options.groups or [], targets)
    ]
    extract, image_size = _open(options)
    curves, tables = {}, []
    for number, target in enumerate(targets):
        embeddings, xnorm = embed_pairs(
            extract,
            target,
            batch_size=options.batch_size,
            flip=not options.no_flip,
            image_size=image_size,
        )
        report = SetReport(target.name, embeddings, target.same, xnorm=xnorm)
        print(f"{target.name}: {report.result}", flush=True)
        table = _tell(report, groups[number] if groups else None, options)
        tables.append({**table, "file": str(target.path)})
        lines = _draw_pairs(target, report, options)
        if options.bad_cases:
            judgments = judge(embeddings, target.same)
            draw = _sheets(target)
            lines = write_bad_cases(options.bad_cases, target.name, judgments, draw) + lines
        _print(lines)
        if options.roc:
            curves[target.name] = report.curve
    if options.roc:
        write_output(options.roc, draw_roc(curves), "--roc")
        print(f"{options.roc}: the ROC of {', '.join(curves)}")
    if options.json:
        _write_json(options, image_size, tables)


def _open(options: argparse.Namespace) -> tuple[Extract, tuple[int, int]]:
    """Return the network, and the height and width of its images."""
    image_size = tuple(options.image_size) if options.image_size else None
    if isinstance(options.model, Path):
        return open_onnx(options.model, image_size)
    from backbones.model import Backbone
    from runtime.mxnet import mx

    if options.gpu and not mx.context.num_gpus():
        raise ConfigError(
            "--gpu: this process sees no GPU; leave it out, or see python -m runtime.gpu_check"
        )
    image_size = image_size or FACE_SIZE
    device = mx.gpu(0) if options.gpu else mx.cpu()
    backbone = Backbone.load(*options.model, image_size=image_size, dtype=options.dtype, ctx=device)
    backbone.hybridize()
    return backbone.inference(), image_size


def _tell(
    report: SetReport, groups: Optional[list[str]], options: argparse.Namespace
) -> dict[str, Any]:
    """Print what the options ask for of a set; return its part of the JSON file."""
    lines, table = [], {}
    if options.json:
        table = report.to_json()
    if options.roc_table:
        lines += roc_lines(report.name, report.curve)
    thresholds = report.thresholds(options.far)
    lines += threshold_lines(report.name, thresholds)
    table["thresholds_for_far"] = threshold_table(thresholds)
    if groups is not None:
        rows = report.by_group(groups)
        lines += group_lines(report.name, rows)
        table["by_group"] = group_table(rows)
    _print(lines)
    return table


def _draw_pairs(
    target: VerificationSet, report: SetReport, options: argparse.Namespace
) -> list[str]:
    if not options.hardest:
        return []
    found = report.cosines, report.same
    return write_hardest(options.hardest, target.name, *found, _sheets(target))


def _sheets(target: VerificationSet) -> Any:
    from data.inspect.sheets import draw_chosen_pairs

    return partial(draw_chosen_pairs, target)


def _write_json(
    options: argparse.Namespace, image_size: tuple[int, int], tables: list[dict[str, Any]]
) -> None:
    model = options.model
    content = {
        "model": str(model) if isinstance(model, Path) else "{},{}".format(*model),
        "options": {
            "flip": not options.no_flip,
            "image_size": list(image_size),
            "batch_size": options.batch_size,
            "dtype": options.dtype,
            "gpu": options.gpu,
        },
        "sets": tables,
    }
    text = json.dumps(content, indent=2, allow_nan=False) + "\n"
    write_output(options.json, text.encode(), "--json")
    print(f"{options.json}: {len(tables)} verified set{'s' * (len(tables) > 1)}")


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        print(line)


if __name__ == "__main__":
    run_program(main)
