"""Make the files that training reads from a folder of images per identity.

    python -m data.pack FOLDER OUT_DIR [--resize 112 --crop | --align FILE] [--holdout-every K]
    python -m data.pack --pairs PAIRS.txt FOLDER OUT.bin

The first form writes ``train.rec``, ``train.idx`` and ``property``, or with ``--shards N`` as many
pairs of ``train-00000.rec`` and ``train-00000.idx``. With ``--holdout-every`` it
leaves every K-th identity out of them and writes pairs of these to ``holdout.bin``, on which a
network can be verified that was trained on the others. The second form writes the verification set
of a published list of pairs. The order of the images depends on their names alone, and files get
their names when they are complete.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from data.align.points import PointsFile
from data.identities import Images, find_identities
from data.pack.image_files import ImageReader
from data.records.writer import RecordWriter
from data.verification.bin_file import write_bin
from data.verification.pairs import Pair, draw_pairs, read_pairs
from data.worker_threads import add_workers, say
from runtime.command_line import Parser, positive_integer
from runtime.errors import ConfigError, print_line, run_stoppable, undisturbed
from runtime.files import as_data_error

_MAX_SIDE = 4096


def pack_training(
    folder: Path,
    identities: Images,
    out_dir: Path,
    reader: ImageReader,
    shards: int = 0,
) -> tuple[int, int]:
    """Write a training set of some identities of a folder; return height and width of the images.

    The identities get the classes 0, 1, 2, … in the order given; with ``shards`` they are divided
    among so many files.

    Raises:
        DataError: an image is broken, or of another size than the first.
    """
    labels = (label for label, images in enumerate(identities.values()) for _ in images)
    paths = [os.path.join(folder, name, image) for name in identities for image in identities[name]]
    encoded = reader.read_all(paths, "packing images")
    first = next(encoded)
    parts = split_evenly([*map(len, identities.values())], shards) if shards else ()
    with RecordWriter(out_dir, image_size=first.size, shards=parts) as writer:
        # The images first: if labels ended first, zip would miss an error after the last image.
        for image, label in zip(chain([first], encoded), labels):
            writer.write(image.payload, label)
    return first.size


def split_evenly(image_counts: Sequence[int], parts: int) -> list[int]:
    """Return how many identities, one after another, go into each of some parts, at least one.

    The parts have about as many images each; ``image_counts`` are those of the identities.
    """
    count, sizes = len(image_counts), np.array(image_counts)
    assert 0 < parts <= count
    wanted = sizes.sum() * np.arange(1, parts) / parts
    # An identity belongs to the part in which its middle lies.
    cuts = np.searchsorted(np.cumsum(sizes) - sizes / 2, wanted, "right") - np.arange(1, parts)
    cuts = np.clip(np.maximum.accumulate(cuts), 0, count - parts) + np.arange(1, parts)
    counts: list[int] = np.diff([0, *cuts.tolist(), count]).tolist()
    return counts


def pack_pairs(pairs: Sequence[Pair[Path]], path: Path, reader: ImageReader) -> None:
    """Write a verification set.

    Raises:
        DataError: an image is broken, or of another size than the first.
    """
    files = [str(file) for first, second, _ in pairs for file in (first, second)]
    images = reader.read_all(list(dict.fromkeys(files)), "reading pairs")
    distinct = {image.path: image.payload for image in images}
    with undisturbed():
        write_bin(path, [distinct[file] for file in files], [same for _, _, same in pairs])


def _size(text: str) -> tuple[int, int]:
    """Convert an option that is HxW, or one number for a square."""
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if match:
        size = int(match[1]), int(match[2] or match[1])
        if 0 < min(size) and max(size) <= _MAX_SIDE:
            return size
    raise argparse.ArgumentTypeError(
        f"{text!r} is no size; give HEIGHTxWIDTH or one number for both, 1 to {_MAX_SIDE}"
    )


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m data.pack",
        description="Pack a folder of images per identity for training, or pairs for verification.",
    )
    add = parser.add_argument
    folder_help = (
        "holds a folder of images per identity; those in folders within it belong to the identity. "
        "What is left out is counted on standard error"
    )
    add("folder", type=Path, help=folder_help)
    add("out", type=Path, help="the folder, or with --pairs the .bin file, to write")
    pairs_help = "make a verification set of these pairs (LFW's format)"
    add("--pairs", type=Path, metavar="FILE", help=pairs_help)
    resize_help = (
        "bring the images to this size, as JPEG of quality 95; one number is a square. JPEGs "
        "and PNGs that have it already, and all without this option, are copied unchanged"
    )
    add("--resize", type=_size, metavar="HxW", help=resize_help)
    crop_help = (
        "with --resize: of images of another shape, take the center. Without it they are "
        "refused, since a stretched face is another face"
    )
    add("--crop", action="store_true", help=crop_help)
    align_help = (
        "cut the faces out, at 112 x 112, by a list of the five points of each image "
        "(python -m data.align --help)"
    )
    add("--align", type=Path, metavar="FILE", help=align_help)
    png_help = (
        "write what is not copied (resized images, those of other formats such as .bmp and "
        ".pgm, those that a camera stored on their side) as PNG, without loss, instead of JPEG"
    )
    add("--png", action="store_true", help=png_help)
    check_help = (
        "decode every image and name all broken files; otherwise only their first and last "
        "bytes are looked at, and the first broken file ends the packing"
    )
    add("--check", action="store_true", help=check_help)
    shards_help = (
        "write N files, train-00000.rec and so on, with about as many images in each, instead of "
        "train.rec; the folder is read as one set"
    )
    add("--shards", type=positive_integer, metavar="N", default=0, help=shards_help)
    min_help = "leave out identities with fewer images"
    add("--min-images", type=positive_integer, default=1, metavar="N", help=min_help)
    holdout_help = "hold every K-th identity out of training and make holdout.bin of them"
    add("--holdout-every", type=int, default=0, metavar="K", help=holdout_help)
    count_help = "pairs in holdout.bin (%(default)s)"
    add("--holdout-pairs", type=int, default=3000, metavar="P", help=count_help)
    add("--folds", type=int, default=10, help="folds of holdout.bin (%(default)s)")
    add("--seed", type=int, default=0, help="of the pairs in holdout.bin (%(default)s)")
    add_workers(parser)
    return parser.parse_args(argv)


def _check(options: argparse.Namespace) -> None:
    if options.holdout_every < 0 or options.holdout_every == 1:
        raise ConfigError(
            f"--holdout-every {options.holdout_every} leaves nothing to train on; choose 2 or more"
        )
    if options.seed < 0:
        raise ConfigError(f"--seed {options.seed} is negative")
    if options.crop and not options.resize:
        raise ConfigError("--crop needs the size to crop to; add --resize, such as --resize 112")
    if options.align and options.resize:
        raise ConfigError("--align makes images of 112 x 112; leave --resize and --crop out")
    if options.pairs and (options.holdout_every or options.min_images > 1 or options.shards):
        raise ConfigError(
            "--pairs makes a verification set only; leave --min-images, --holdout-every and "
            "--shards out"
        )
    if options.shards and options.out.suffix == ".rec":
        raise ConfigError(f"--shards needs a folder to write to, and {options.out} is a file")


def _pack(options: argparse.Namespace) -> None:
    points = PointsFile(options.align, options.folder) if options.align else None
    reader = ImageReader(
        options.resize, options.crop, options.check, options.png, options.workers, points
    )
    if options.pairs:
        pairs = read_pairs(options.pairs, options.folder)
        pack_pairs(pairs, options.out, reader)
        print_line(f"{options.out}: {len(pairs)} pairs")
        return
    training, remarks = find_identities(options.folder, options.min_images)
    if every := options.holdout_every:
        held_out = {name: training.pop(name) for name in [*training][every - 1 :: every]}
        files = [[options.folder / name / one for one in own] for name, own in held_out.items()]
        count, folds = options.holdout_pairs, options.folds
        pairs = draw_pairs(files, count=count, folds=folds, seed=options.seed)
    if options.shards > len(training):
        raise ConfigError(
            f"--shards {options.shards} is more than the {len(training)} identities, which are not "
            "divided; choose fewer"
        )
    height, width = pack_training(options.folder, training, options.out, reader, options.shards)
    for line in remarks:
        say(line)
    images = sum(map(len, training.values()))
    print_line(f"{options.out}: {len(training)} identities, {images} images of {height} x {width}")
    if every:
        path = options.out / "holdout.bin"
        pack_pairs(pairs, path, reader)
        print_line(f"{path}: {len(pairs)} pairs of {len(held_out)} identities")


def main() -> None:
    """Pack what the command line asks for."""
    options = _parse(sys.argv[1:])
    _check(options)
    remedy = "choose a place with enough room where you may write"
    # Errors of reading are DataErrors already.
    with as_data_error(f"{options.out} cannot be written", remedy):
        _pack(options)


if __name__ == "__main__":
    run_stoppable(main)
