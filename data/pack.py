"""Make the files that training reads from a folder of images per identity.

    python -m data.pack FOLDER OUT_DIR [--min-images N] [--holdout-every K]
    python -m data.pack --pairs PAIRS.txt FOLDER OUT.bin

The first form writes ``train.rec``, ``train.idx`` and ``property``, and with ``--holdout-every``
leaves every K-th identity out of training and writes pairs of them to ``holdout.bin``, so that one
can see what the network makes of people it has never met. The second form writes the verification
set of a published list of pairs. Encoded images are copied unchanged: decoding and encoding once
more would blur them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from data.images import decode_rgb
from data.pairs import Pair, draw_pairs, read_pairs
from data.recordio import BrokenRecordError
from data.records import RecordWriter
from data.verification_sets import write_bin
from runtime.command_line import Parser
from runtime.errors import ConfigError, DataError, run_program

_SUFFIXES = (".jpg", ".jpeg", ".png")
# Files that are read and checked at once; bounds the memory of packing.
_CHUNK = 1024


class Identity(NamedTuple):
    """A person's name and images."""

    name: str
    images: list[Path]


class _Encoded(NamedTuple):
    path: Path
    payload: bytes
    size: tuple[int, int]


def find_identities(folder: Path, min_images: int = 1) -> list[Identity]:
    """Return the identities of a folder, by name, each with its images by name.

    Args:
        folder: a folder per identity, each with JPEG or PNG images.
        min_images: identities with fewer are left out.

    Raises:
        DataError: there is no such folder, or no identity is left.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; name one that holds a folder per identity")
    identities = [
        Identity(person.name, sorted(p for p in person.iterdir() if p.suffix.lower() in _SUFFIXES))
        for person in sorted(folder.iterdir())
        if person.is_dir()
    ]
    kept = [identity for identity in identities if len(identity.images) >= max(1, min_images)]
    if not kept:
        raise DataError(
            f"{folder}: none of its {len(identities)} folders holds {max(1, min_images)} JPEG or "
            "PNG images; name the folder above the identities, or lower --min-images"
        )
    return kept


def pack_training(identities: Sequence[Identity], out_dir: Path) -> tuple[int, int]:
    """Write a training set; identities get the classes 0, 1, 2, … in the order given.

    Returns:
        Height and width of the images.

    Raises:
        DataError: an image is broken, or of another size than the first.
    """
    labels = [label for label, (_, images) in enumerate(identities) for _ in images]
    encoded = _read_images(path for _, images in identities for path in images)
    first = next(encoded)
    with RecordWriter(out_dir, image_size=first.size) as writer:
        writer.write(first.payload, labels[0])
        for label, image in zip(labels[1:], encoded):
            writer.write(image.payload, label)
    return first.size


def pack_pairs(pairs: Sequence[Pair], path: Path) -> None:
    """Write a verification set.

    Raises:
        DataError: an image is broken, or of another size than the first.
    """
    files = [file for pair in pairs for file in (pair.first, pair.second)]
    distinct = {image.path: image.payload for image in _read_images(dict.fromkeys(files))}
    write_bin(path, [distinct[file] for file in files], [pair.same for pair in pairs])


def split_holdout(
    identities: Sequence[Identity], every: int
) -> tuple[list[Identity], list[Identity]]:
    """Return the identities to train on, and every ``every``-th, which is held out."""
    held_out = list(identities[every - 1 :: every])
    return [identity for identity in identities if identity not in held_out], held_out


def _draw_holdout(identities: Sequence[Identity], count: int, folds: int, seed: int) -> list[Pair]:
    counts = [len(identity.images) for identity in identities]

    def file(place: tuple[int, int]) -> Path:
        identity, image = place
        return identities[identity].images[image]

    drawn = draw_pairs(counts, count=count, folds=folds, seed=seed)
    return [Pair(file(pair.first), file(pair.second), pair.same) for pair in drawn]


def _read_images(paths: Iterable[Path]) -> Iterator[_Encoded]:
    """Yield the images in order; they are read and checked in threads."""
    remaining = list(paths)
    size = None
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for start in range(0, len(remaining), _CHUNK):
            for image in pool.map(_read_image, remaining[start : start + _CHUNK]):
                size = size or image.size
                if image.size != size:
                    raise DataError(
                        f"{image.path} has {image.size[0]} x {image.size[1]} pixels, the images "
                        f"before it {size[0]} x {size[1]}; align all faces to one size first"
                    )
                yield image


def _read_image(path: Path) -> _Encoded:
    try:
        payload = path.read_bytes()
        height, width = decode_rgb(payload).shape[:2]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except BrokenRecordError as error:
        raise DataError(f"{path}: {error}; remove it or copy it again") from None
    return _Encoded(path, payload, (height, width))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m data.pack",
        description="Pack a folder of images per identity for training, or pairs for verification.",
    )
    parser.add_argument(
        "folder", type=Path, help="holds a folder of JPEG or PNG images per identity"
    )
    parser.add_argument(
        "out", type=Path, help="the folder, or with --pairs the .bin file, to write"
    )
    parser.add_argument(
        "--pairs",
        type=Path,
        metavar="FILE",
        help="make a verification set of these pairs (LFW's format)",
    )
    parser.add_argument(
        "--min-images",
        type=int,
        default=1,
        metavar="N",
        help="leave out identities with fewer images",
    )
    parser.add_argument(
        "--holdout-every", type=int, default=0, metavar="K",
        help="hold every K-th identity out of training and make holdout.bin of them",
    )  # fmt: skip
    parser.add_argument(
        "--holdout-pairs",
        type=int,
        default=3000,
        metavar="P",
        help="pairs in holdout.bin (%(default)s)",
    )
    parser.add_argument("--folds", type=int, default=10, help="folds of holdout.bin (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the pairs in holdout.bin (%(default)s)"
    )
    return parser.parse_args(argv)


def _check(options: argparse.Namespace) -> None:
    if options.min_images < 1:
        raise ConfigError(f"--min-images {options.min_images} is not positive")
    if options.holdout_every < 0 or options.holdout_every == 1:
        raise ConfigError(
            f"--holdout-every {options.holdout_every} leaves nothing to train on; choose 2 or more"
        )
    if options.seed < 0:
        raise ConfigError(f"--seed {options.seed} is negative")
    if options.pairs and (options.holdout_every or options.min_images > 1):
        raise ConfigError("--pairs makes a verification set only; leave the other options out")


def main() -> None:
    """Pack what the command line asks for."""
    options = _parse(sys.argv[1:])
    _check(options)
    if options.pairs:
        pairs = read_pairs(options.pairs, options.folder)
        pack_pairs(pairs, options.out)
        print(f"{options.out}: {len(pairs)} pairs")
        return
    training = find_identities(options.folder, options.min_images)
    if options.holdout_every:
        training, held_out = split_holdout(training, options.holdout_every)
        pairs = _draw_holdout(held_out, options.holdout_pairs, options.folds, options.seed)
    height, width = pack_training(training, options.out)
    images = sum(len(identity.images) for identity in training)
    print(f"{options.out}: {len(training)} identities, {images} images of {height} x {width}")
    if options.holdout_every:
        pack_pairs(pairs, options.out / "holdout.bin")
        print(f"{options.out / 'holdout.bin'}: {len(pairs)} pairs of {len(held_out)} identities")


if __name__ == "__main__":
    run_program(main)
