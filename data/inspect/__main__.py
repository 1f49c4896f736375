"""Inspect a set before training on it, or one that came from elsewhere.

    python -m data.inspect datasets/faces
    python -m data.inspect datasets/faces/holdout.bin

Prints a summary and draws two sheets: a histogram of the images per identity, and samples. Every
image is decoded, and broken ones are listed by their key. The exit status is 0 if all images are
fine, 1 if some are bad, 2 if the set cannot be opened.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Optional, Union

import numpy as np
from numpy.typing import NDArray

from data.decoding import has_shape
from data.inspect.sheets import draw_histogram, draw_identities, draw_pairs
from data.records.record_set import RecordSet
from data.verification.bin_file import VerificationSet, read_bin
from data.worker_threads import add_workers, map_in_order, track
from runtime.command_line import Parser
from runtime.errors import DataError, print_line, run_stoppable
from runtime.files import as_data_error, write_atomically

# More would push the rest of the report off the screen; a file has all bad images.
_MAX_LINES = 20
# Identities are counted by their number of images.
_GROUPS, _BORDERS = ("1", "2 to 9", "10 to 49", "50 or more"), (1, 2, 10, 50, np.inf)
_Size = tuple[int, int]
_Set = Union[RecordSet, VerificationSet]


@dataclass(frozen=True)
class Survey:
    """Findings of decoding every image of a set once.

    Attributes:
        bytes: of all encoded images.
        sizes: the number of images by height and width.
        bad: a line for each image that cannot be used, with its key or number.
        labels: int64 ``[images]``: the identity of each, -1 where it is unreadable or not known.
        repeated: pairs of indices, int64 ``[n, 2]``: an image, and an earlier one with the same
            bytes.
    """

    bytes: int
    sizes: Counter[_Size]
    bad: list[str]
    labels: NDArray[np.int64]
    repeated: NDArray[np.int64]


def survey(images: _Set, workers: int) -> Survey:
    """Decode every image of a set in ``workers`` threads; one in several pairs once for each."""
    sizes: Counter[_Size] = Counter()
    bad, total = [], 0
    # Plain arrays: millions of results as objects would fill the memory.
    labels, hashes = np.empty((2, len(images)), np.int64)
    with map_in_order(partial(_check, images), range(len(images)), workers) as results:
        for index, one in enumerate(track(results, len(images), "checking images")):
            labels[index], length, hashes[index], size, problem = one
            total += length
            bad += [problem] * bool(problem)
            if size is not None:
                sizes[size] += 1
    _, firsts, numbers = np.unique(hashes, return_index=True, return_inverse=True)
    pairs = np.stack([np.arange(len(images)), firsts[numbers]], axis=1)
    return Survey(total, sizes, bad, labels, pairs[pairs[:, 0] != pairs[:, 1]])


def _check(images: _Set, index: int) -> tuple[int, int, int, Optional[_Size], str]:
    """Return label, bytes and hash of an image, its size if it can be decoded, and its problem.

    One of a record set has to have the shape of the set's images.
    """
    # A hash that hardly any other image has.
    label, length, found, size, problem = -1, 0, -index - 1, None, ""
    try:
        payload, label = images.image(index)
        length, found = len(payload), hash(bytes(payload))
        height, width, _ = images.decoded(index)[0].shape
        size = height, width
        if isinstance(images, RecordSet) and not has_shape(size, images.image_size):
            problem = f"{images.where(index)}: the image has another shape than the set's"
    except DataError as error:
        problem = str(error)
    return label, length, found, size, problem.removeprefix(f"{images.path}: ")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m data.inspect",
        description="Count, check and draw a record set or a verification set. Exit status: 0 if "
        "all images are fine, 1 if some are bad, 2 if the set cannot be opened.",
    )
    add = parser.add_argument
    add("path", type=Path, help="a .rec file, a folder with one, or a verification set (.bin)")
    out_help = "the folder for the images (%(default)s)"
    add("--out", type=Path, default=Path("inspection"), metavar="DIR", help=out_help)
    check_help = "do not decode the images, only count them"
    add("--no-check", dest="check", action="store_false", help=check_help)
    add_workers(parser)
    return parser.parse_args(argv)


def _inspect_images(images: _Set, found: Optional[Survey]) -> None:
    """Print what both kinds of sets have: images and their sizes."""
    kind = "verification set"
    if isinstance(images, RecordSet):
        kind = "identity-grouped" if images.identities else "flat"
    print_line(f"{images.path}: {kind}, {images.path.stat().st_size / 1e6:,.1f} MB")
    sizes: Counter[_Size] = Counter() if found is None else found.sizes
    mean = f", {found.bytes / sum(sizes.values()) / 1e3:.1f} kB each" if found and sizes else ""
    _print_row("images", f"{len(images):,}{mean}")
    for (height, width), count in sizes.most_common():
        _print_row(f"  of {height} x {width}", f"{count:,}")


def _inspect_records(records: RecordSet, found: Optional[Survey], name: str, out: Path) -> None:
    labels = records.labels().astype(np.int64) if found is None else found.labels
    counts = np.bincount(labels[labels >= 0], minlength=records.num_classes)
    present = counts[counts > 0]
    _print_row("identities", f"{len(present):,} with images, of {records.num_classes:,} classes")
    if len(present):
        extremes = f"{present.min():,} to {present.max():,}"
        mean = f"median {np.median(present):,.10g}, mean {present.mean():,.1f}"
        _print_row("images per identity", f"{extremes}, {mean}")
        for span, number in zip(_GROUPS, np.histogram(present, _BORDERS)[0]):
            share = f"{number / len(present):.1%}"
            _print_row(f"  {span}", f"{number:,} ({share}) of the identities")
    if found is not None:
        _print_row("repeated images", f"{len(found.repeated):,}")
        later, earlier = found.labels[found.repeated].T
        conflicts = found.repeated[later != earlier]
        _print_row("  of other identities", f"{len(conflicts):,}")
        for pair in conflicts[:_MAX_LINES]:
            first, second = sorted(records.key(int(index)) for index in pair)
            print(f"    record {first} = record {second}")
    if len(present):
        title = f"{name}: {len(records):,} images of {len(present):,} identities"
        _write(out / f"{name}-images-per-identity.png", draw_histogram(present, title))
        _write(out / f"{name}-samples.png", draw_identities(records, labels, title))


def _inspect_pairs(pairs: VerificationSet, name: str, out: Path) -> None:
    same = int(pairs.same.sum())
    _print_row("pairs", f"{len(pairs.same):,}: {same:,} same, {len(pairs.same) - same:,} different")
    _print_row("different images", f"{len(np.unique(pairs.firsts)):,}")
    _write(out / f"{name}-samples.png", draw_pairs(pairs, f"{name}: {len(pairs.same):,} pairs"))


def _print_bad(found: Survey, path: Path) -> None:
    """Print the bad images; if there are many, write all to a file."""
    _print_row("bad images", f"{len(found.bad):,}")
    for line in found.bad[:_MAX_LINES]:
        print_line(f"  {line}")
    if len(found.bad) > _MAX_LINES:
        print(f"  and {len(found.bad) - _MAX_LINES:,} more")
        _write(path, "".join(f"{line}\n" for line in found.bad).encode())


def _print_row(name: str, value: str) -> None:
    print(f"{name:<22}{value}")


def _write(path: Path, content: bytes) -> None:
    with as_data_error(f"{path} cannot be written", "choose another folder with --out"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    print_line(str(path))


def main() -> int:
    """Inspect what the command line names; return the exit status."""
    options = _parse(sys.argv[1:])
    is_bin = options.path.suffix == ".bin"
    images: _Set = read_bin(options.path) if is_bin else RecordSet(options.path)
    name = images.path.stem if images.path.stem != "train" else images.path.resolve().parent.name
    found = survey(images, options.workers) if options.check else None
    _inspect_images(images, found)
    if isinstance(images, RecordSet):
        _inspect_records(images, found, name, options.out)
    else:
        _inspect_pairs(images, name, options.out)
    if found is None:
        return 0
    _print_bad(found, options.out / f"{name}-bad.txt")
    return 1 if found.bad else 0


if __name__ == "__main__":
    run_stoppable(main)
