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
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from data.inspect.sheets import draw_histogram, draw_identities, draw_pairs
from data.inspect.survey import Survey, survey_pairs, survey_records
from data.records.record_set import RecordSet
from data.resizing import has_shape
from data.verification.bin_file import VerificationSet, read_bin
from data.worker_threads import add_workers
from runtime.command_line import Parser
from runtime.errors import DataError
from runtime.files import write_atomically
from runtime.process.terminal import print_line
from runtime.stopping import run_stoppable

_BAD_STATUS = 1
# More would push the rest of the report off the screen; a file has all bad images.
_MAX_LINES = 20
# Identities are counted by their number of images: first and last of each group.
_GROUPS = ((1, 1), (2, 9), (10, 49), (50, None))
_FOLDS = 10


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


def _inspect_records(records: RecordSet, options: argparse.Namespace) -> Optional[Survey]:
    survey = survey_records(records, options.workers) if options.check else None
    labels = records.labels().astype(np.int64) if survey is None else survey.labels
    counts = np.bincount(labels[labels >= 0], minlength=records.num_classes)
    height, width = records.image_size
    kind = "identity-grouped" if len(records.identity_ranges()) else "flat"
    print_line(f"{records.path}: {kind}, {records.path.stat().st_size / 1e6:,.1f} MB")
    _print_row("images", f"{len(records):,} of {height} x {width}{_average_size(survey)}")
    if survey is not None:
        _print_sizes(records, survey)
    present = counts[counts > 0]
    _print_row("identities", f"{len(present):,} with images, of {records.num_classes:,} classes")
    if len(present):
        _print_images_per_identity(present)
    if survey is not None:
        _print_repeated(records, survey)
    name = records.name if records.path.stem == "train" else records.path.stem
    title = f"{name}: {len(records):,} images of {len(present):,} identities"
    if len(present):
        histogram = draw_histogram(present, title)
        _write(options.out / f"{name}-images-per-identity.png", histogram)
        _write(options.out / f"{name}-samples.png", draw_identities(records, labels, title))
    return survey


def _inspect_pairs(pairs: VerificationSet, options: argparse.Namespace) -> Optional[Survey]:
    survey = survey_pairs(pairs, options.workers) if options.check else None
    same = int(pairs.same.sum())
    print_line(f"{pairs.path}: verification set, {pairs.path.stat().st_size / 1e6:,.1f} MB")
    _print_row("pairs", f"{len(pairs.same):,}: {same:,} same, {len(pairs.same) - same:,} different")
    folds = [str(int(fold.sum())) for fold in np.array_split(pairs.same, _FOLDS)]
    _print_row("same pairs by fold", " ".join(folds))
    different = f"{len(np.unique(pairs.firsts)):,} different"
    _print_row("images", f"{len(pairs):,}, {different}{_average_size(survey)}")
    if survey is not None:
        for (height, width), count in survey.sizes.most_common():
            _print_row(f"of {height} x {width}", f"{count:,}")
    title = f"{pairs.name}: {len(pairs.same):,} pairs"
    _write(options.out / f"{pairs.name}-samples.png", draw_pairs(pairs, title))
    return survey


def _average_size(survey: Optional[Survey]) -> str:
    readable = 0 if survey is None else sum(survey.sizes.values())
    return f", {survey.bytes / readable / 1e3:.1f} kB each" if survey and readable else ""


def _print_sizes(records: RecordSet, survey: Survey) -> None:
    """Print how many images have another size than the set, by their size."""
    for (height, width), count in survey.sizes.most_common():
        if (height, width) != records.image_size:
            fits = has_shape((height, width), records.image_size)
            what = "resized in training" if fits else "of another shape"
            _print_row(f"  of {height} x {width}", f"{count:,}, {what}")


def _print_images_per_identity(counts: NDArray[np.int64]) -> None:
    """Print how the images spread over the identities that have any."""
    extremes = f"{counts.min():,} to {counts.max():,}"
    mean = f"median {np.median(counts):,.10g}, mean {counts.mean():,.1f}"
    _print_row("images per identity", f"{extremes}, {mean}")
    for low, high in _GROUPS:
        number = int(((counts >= low) & (counts <= (high or counts.max()))).sum())
        span = f"{low} or more" if high is None else f"{low} to {high}" if high > low else f"{low}"
        _print_row(f"  {span}", f"{number:,} ({number / len(counts):.1%}) of the identities")


def _print_repeated(records: RecordSet, survey: Survey) -> None:
    """Print how many images are repeated, and the keys of those that have two identities."""
    _print_row("repeated images", f"{len(survey.repeated):,}")
    later, earlier = survey.labels[survey.repeated].T
    conflicts = survey.repeated[later != earlier]
    _print_row("  of other identities", f"{len(conflicts):,}")
    for pair in conflicts[:_MAX_LINES]:
        first, second = sorted(records.key(int(index)) for index in pair)
        print(f"    record {first} = record {second}")


def _print_bad(survey: Survey, path: Path) -> None:
    """Print the bad images; if there are many, write all to a file."""
    _print_row("bad images", f"{len(survey.bad):,}")
    for line in survey.bad[:_MAX_LINES]:
        print_line(f"  {line}")
    if len(survey.bad) > _MAX_LINES:
        print(f"  and {len(survey.bad) - _MAX_LINES:,} more")
        _write(path, "".join(f"{line}\n" for line in survey.bad).encode())


def _print_row(name: str, value: str) -> None:
    print(f"{name:<22}{value}")


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise DataError(
            f"{path} cannot be written: {error.strerror}; choose another folder with --out"
        ) from None
    print_line(str(path))


def main() -> int:
    """Inspect what the command line names; return the exit status."""
    options = _parse(sys.argv[1:])
    if options.path.suffix == ".bin":
        pairs = read_bin(options.path)
        survey, name = _inspect_pairs(pairs, options), pairs.name
    else:
        records = RecordSet(options.path)
        survey, name = _inspect_records(records, options), records.name
    if survey is None:
        return 0
    _print_bad(survey, options.out / f"{name}-bad.txt")
    return _BAD_STATUS if survey.bad else 0


if __name__ == "__main__":
    run_stoppable(main)
