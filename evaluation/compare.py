"""Whether two images show the same person, and how far that can be trusted.

A cosine says nothing without a threshold, and a threshold nothing without the share of pairs of
different people that it accepts. That share is measured on a verification set, so the answer names
both.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

import numpy as np

from data.align.points import PointsFile
from data.named_images import NamedImages, image_files
from data.verification.bin_file import read_bin
from evaluation.features import FaceNetwork, normalized
from evaluation.network import device_of, open_network
from evaluation.options import add_network, cosine, share
from evaluation.verification import embed_pairs
from evaluation.verification.curves import pairs_of, threshold_for
from runtime.command_line import Parser
from runtime.errors import ConfigError, DataError, run_program

_FAR = 1e-3


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m evaluation.compare",
        description="Say whether two images show the same person. They have the size that the "
        "network takes, or --align cuts the faces out.",
    )
    add = parser.add_argument
    add("images", nargs=2, metavar="IMAGE", help="the two images")
    add_network(parser)
    threshold_help = "the cosine from which on two images show the same person"
    add("--threshold", type=cosine, metavar="COSINE", help=threshold_help)
    far_help = "take the threshold at which this share of --target's different pairs is accepted"
    add("--far", type=share, metavar="SHARE", help=f"{far_help} ({_FAR:g})")
    target_help = "a verification set; beside --threshold it says which share that accepts"
    add("--target", metavar="FILE.bin", help=target_help)
    align_help = (
        "cut the faces out by this list of points, with the paths of the images from here "
        "(python -m data.align --help)"
    )
    add("--align", type=Path, metavar="FILE", help=align_help)
    options = parser.parse_args(argv)
    if options.threshold is None and options.target is None:
        raise ConfigError(
            "nothing says which cosine is enough: give --threshold COSINE, or --target FILE.bin "
            "and the wanted --far"
        )
    if options.far is not None and (options.target is None or options.threshold is not None):
        raise ConfigError("--far takes the threshold from --target; give it without --threshold")
    return options


def _cosine(options: argparse.Namespace, network: FaceNetwork) -> float:
    points = PointsFile(options.align, Path(".")) if options.align else None
    files = image_files(options.images, ["", ""])
    faces = NamedImages([files], network.image_size, points=points)
    try:
        images = [faces.read(number) for number in range(2)]
    except DataError as error:
        remedy = "" if options.align else "; cut the faces out with --align POINTS.txt"
        raise DataError(f"{error}{remedy}") from None

    features, _ = replace(network, batch_size=2).sums(np.stack(images))
    first, second = normalized(features).astype(np.float64)
    return float(first @ second)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Print the cosine with the answer, and the threshold with its false accept rate."""
    options = _parse(argv)
    # Here, because rooms meet in programs only.
    from parallel.world import LoneWorld

    target = read_bin(options.target) if options.target is not None else None
    if target is not None and target.same.all():
        raise DataError(f"verification set {target.name!r} has no pair of two people; take another")
    network = open_network(options, device_of(options, LoneWorld()))
    found = _cosine(options, network)
    threshold, said = options.threshold, "as given; --target FILE.bin measures its FAR"
    if target is not None:
        embeddings, _ = embed_pairs(network, target)
        different = pairs_of(embeddings, target.same, 1).cosines[~target.same]
        if threshold is None:
            far = options.far or _FAR
            threshold = threshold_for(different, far)
            if threshold is None:
                raise DataError(
                    f"{target.name} has {len(different):,} pairs of two people, of which {far:g} "
                    "is less than one; give a larger --far, or a larger set"
                )
        accepted = int((different >= threshold).sum())
        said = (
            f"FAR {accepted / len(different):.2g}: it accepts {accepted:,} of the "
            f"{len(different):,} pairs of two people in {target.name}"
        )
    print(f"cosine {found:.4f}: {'same' if found >= threshold else 'not the same'}")
    print(f"threshold {threshold:.4f}, {said}")


if __name__ == "__main__":
    run_program(main)
