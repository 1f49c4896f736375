"""Whether two images show the same person, and how far that can be trusted.

A cosine says nothing without a threshold, and a threshold nothing without the share of pairs of
different people that it accepts. That share is measured on a verification set, so the answer names
both.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Optional

import numpy as np
from numpy.typing import NDArray

from evaluation.features import normalized, sums_of_views
from evaluation.network import FaceNetwork, add_network, device_of, open_network
from evaluation.verification import embed
from evaluation.verification.curves import cosines_of_pairs, threshold_for
from runtime.command_line import Parser
from runtime.errors import ConfigError, DataError, run_program

if TYPE_CHECKING:
    from data.verification.bin_file import VerificationSet

_FAR = 1e-3


def different_cosines(
    network: FaceNetwork, target: VerificationSet, batch_size: int, *, flip: bool
) -> NDArray[np.float64]:
    """Return the cosines of a verification set's pairs of two people.

    Raises:
        DataError: there is none, or an image is broken.
    """
    pairs = np.flatnonzero(~target.same)
    if not len(pairs):
        raise DataError(f"verification set {target.name!r} has no pair of two people; take another")
    images = target.firsts.reshape(-1, 2)[pairs].ravel()
    distinct, places = np.unique(images, return_inverse=True)

    def decode(start: int, stop: int) -> NDArray[np.uint8]:
        return target.decode(distinct[start:stop].tolist(), network.image_size)

    embeddings, _ = embed(network.extract, decode, len(distinct), batch_size, flip=flip)
    return cosines_of_pairs(embeddings[places])


def threshold_at(far: float, cosines: NDArray[np.float64], name: str) -> float:
    """Return the threshold of ``curves.threshold_for``.

    Args:
        far: false accept rate.
        cosines: of the pairs of two people [P]; one at or above the threshold is accepted.
        name: of their set.

    Raises:
        DataError: ``far`` is less than one of the pairs.
    """
    threshold = threshold_for(cosines, far)
    if threshold is None:
        # Rounded up, because a share that is given so has to be one of the pairs.
        scale = 10 ** (len(str(len(cosines))) + 1)
        least = -(-scale // len(cosines)) / scale
        raise DataError(
            f"{name} has {len(cosines):,} pairs of two people, of which {far:g} is less than one; "
            f"give --far {least:g} or more, or a larger set"
        )
    return threshold


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
    add("--threshold", type=float, metavar="COSINE", help=threshold_help)
    far_help = "take the threshold at which this share of --target's different pairs is accepted"
    add("--far", type=float, metavar="SHARE", help=f"{far_help} ({_FAR:g})")
    target_help = "a verification set; beside --threshold it says which share that accepts"
    add("--target", metavar="FILE.bin", help=target_help)
    align_help = (
        "cut the faces out by this list of points, with the paths of the images from here "
        "(python -m data.align --help)"
    )
    add("--align", type=Path, metavar="FILE", help=align_help)
    options = parser.parse_args(argv)
    _check(options)
    return options


def _check(options: argparse.Namespace) -> None:
    if options.threshold is None and options.target is None:
        raise ConfigError(
            "nothing says which cosine is enough: give --threshold COSINE, or --target FILE.bin "
            "and the wanted --far"
        )
    if options.far is not None and (options.target is None or options.threshold is not None):
        raise ConfigError("--far takes the threshold from --target; give it without --threshold")
    if options.far is not None and not 0 < options.far < 1:
        raise ConfigError(f"--far {options.far:g} is no share; choose one between 0 and 1")
    if options.threshold is not None and not -1 <= options.threshold <= 1:
        raise ConfigError(f"--threshold {options.threshold:g} is no cosine; take one of -1 to 1")


def _cosine(options: argparse.Namespace, network: FaceNetwork) -> float:
    from data.align.points import PointsFile
    from data.align.similarity import SIDE
    from data.named_images import NamedImages, image_files

    if options.align and network.image_size != (SIDE, SIDE):
        raise ConfigError(
            f"--align cuts out faces of {SIDE} x {SIDE}, and {network.name} takes images of "
            f"{network.image_size[0]} x {network.image_size[1]}; leave it out"
        )
    points = PointsFile(options.align, Path(".")) if options.align else None
    files = image_files(options.images, ["", ""])
    faces = NamedImages([files], network.image_size, points=points)
    try:
        images = [faces.read(number) for number in range(2)]
    except DataError as error:
        remedy = "" if options.align else "; cut the faces out with --align POINTS.txt"
        raise DataError(f"{error}{remedy}") from None

    features, _ = sums_of_views(network.extract, np.stack(images), 2, flip=not options.no_flip)
    first, second = normalized(features).astype(np.float64)
    return float(first @ second)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Print the cosine with the answer, and the threshold with its false accept rate."""
    options = _parse(argv)
    # Here, because rooms meet in programs only.
    from data.verification.bin_file import read_bin
    from parallel.world import LoneWorld

    target = read_bin(options.target) if options.target is not None else None
    network = open_network(options, device_of(options, LoneWorld()))
    cosine = _cosine(options, network)
    threshold, said = options.threshold, "as given; --target FILE.bin measures its FAR"
    if target is not None:
        cosines = different_cosines(network, target, options.batch_size, flip=not options.no_flip)
        if threshold is None:
            threshold = threshold_at(options.far or _FAR, cosines, target.name)
        accepted = int((cosines >= threshold).sum())
        said = (
            f"FAR {accepted / len(cosines):.2g}: it accepts {accepted:,} of the {len(cosines):,} "
            f"pairs of two people in {target.name}"
        )
    print(f"cosine {cosine:.4f}: {'same' if cosine >= threshold else 'not the same'}")
    print(f"threshold {threshold:.4f}, {said}")


if __name__ == "__main__":
    run_program(main)
