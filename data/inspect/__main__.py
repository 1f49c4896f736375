"""Look at a set before training on it, or at one that came from elsewhere.

    python -m data.inspect datasets/faces
    python -m data.inspect datasets/faces/holdout.bin

Prints what is in it and draws two images: how the images spread over the identities, and a sample
of them. Every image is decoded, and broken ones are listed by their key. The exit status is that of
a tool that looks for faults: 0 where all is well, 1 where some image is bad, 2 where the set cannot
be opened at all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.inspect.sheets import draw_histogram, draw_identities, draw_pairs
from data.inspect.survey import Survey, survey_pairs, survey_records
from data.records.record_set import RecordSet
from data.verification.bin_file import VerificationSet, read_bin
from data.worker_threads import add_workers
from runtime.command_line import Parser
from runtime.errors import DataError
from runtime.files import write_atomically
from runtime.stopping import run_stoppable

_BAD_STATUS = 1
# More would push the rest of the report off the screen; the file has them all.
_MOST_LINES = 20
_GROUPS = ((1, 1), (2, 9), (10, 49), (50, None))
_FOLDS = 10


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m data.inspect",
        description="Count, check and draw a record set or a verification set. Exit status: 0 if "
        "all images are fine, 1 if some are bad, 2 if the set cannot be opened.",
    )
    parser.add_argument(
        "path", type=Path, help="a .rec file, a folder with one, or a verification set (.bin)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("inspection"),
        metavar="DIR",
        help="the folder for the images (%(default)s)",
    )
    parser.add_argument(
        "--no-check",
        dest="check",
        action="store_false",
        help="do not decode the images, only count them",
    )
    add_workers(parser)
    return parser.parse_args(argv)


def _inspect_records(records: RecordSet, options: argparse.Namespace) -> Survey | None:
    survey = survey_records(records, options.workers) if options.check else None
    labels = records.labels().astype(np.int64) if survey is None else survey.labels
    counts = np.bincount(labels[labels >= 0], minlength=records.num_classes)
    height, width = records.image_size
    kind = "identity-grouped" if len(records.identity_ranges()) else "flat"
    print(f"{records.path}: {kind}, {records.path.stat().st_size / 1e6:,.1f} MB")
    _tell("images", f"{len(records):,} of {height} x {width}{_average(survey)}")
    present = counts[counts > 0]
    _tell("identities", f"{len(present):,} with images, of {records.num_classes:,} classes")
    for name, value in _spread_of(present):
        _tell(name, value)
    if survey is not None:
        _tell_repeated(records, survey)
    name = records.name if records.path.stem == "train" else records.path.stem
    title = f"{name}: {len(records):,} images of {len(present):,} identities"
    if len(present):
        histogram = draw_histogram(present, title)
        _write(options.out / f"{name}-images-per-identity.png", histogram)
        _write(options.out / f"{name}-samples.png", draw_identities(records, labels, title))
    return survey


def _inspect_pairs(pairs: VerificationSet, options: argparse.Namespace) -> Survey | None:
    survey = survey_pairs(pairs, options.workers) if options.check else None
    same = int(pairs.same.sum())
    print(f"{pairs.path}: verification set, {pairs.path.stat().st_size / 1e6:,.1f} MB")
    _tell("pairs", f"{len(pairs.same):,}: {same:,} same, {len(pairs.same) - same:,} different")
    folds = [str(int(fold.sum())) for fold in np.array_split(pairs.same, _FOLDS)]
    _tell("same pairs by fold", " ".join(folds))
    _tell("images", f"{len(pairs):,}, {len(set(pairs.images)):,} different{_average(survey)}")
    if survey is not None:
        for (height, width), count in survey.sizes.most_common():
            _tell(f"of {height} x {width}", f"{count:,}")
    title = f"{pairs.name}: {len(pairs.same):,} pairs"
    _write(options.out / f"{pairs.name}-samples.png", draw_pairs(pairs, title))
    return survey


def _average(survey: Survey | None) -> str:
    readable = 0 if survey is None else sum(survey.sizes.values())
    return f", {survey.bytes / readable / 1e3:.1f} kB each" if survey and readable else ""


def _spread_of(counts: NDArray[np.int64]) -> Iterator[tuple[str, str]]:
    """Describe the numbers of images of the identities that have any."""
    if not len(counts):
        return
    yield (
        "images per identity",
        f"{counts.min():,} to {counts.max():,}, median {np.median(counts):,.10g}, "
        f"mean {counts.mean():,.1f}",
    )
    for low, high in _GROUPS:
        number = int(((counts >= low) & (counts <= (high or counts.max()))).sum())
        span = f"{low} or more" if high is None else f"{low} to {high}" if high > low else f"{low}"
        yield f"  {span}", f"{number:,} ({number / len(counts):.1%}) of the identities"


def _tell_repeated(records: RecordSet, survey: Survey) -> None:
    """Say how many images are there twice, and which of them under two identities."""
    _tell("repeated images", f"{len(survey.repeated):,}")
    later, earlier = survey.labels[survey.repeated].T
    conflicts = survey.repeated[later != earlier]
    _tell("  of other identities", f"{len(conflicts):,}")
    for pair in conflicts[:_MOST_LINES]:
        first, second = sorted(records.key(int(index)) for index in pair)
        print(f"    record {first} = record {second}")


def _tell_bad(survey: Survey, path: Path) -> None:
    """List the bad images, and write the list to a file if there are many."""
    _tell("bad images", f"{len(survey.bad):,}")
    for line in survey.bad[:_MOST_LINES]:
        print(f"  {line}")
    if len(survey.bad) > _MOST_LINES:
        print(f"  and {len(survey.bad) - _MOST_LINES:,} more")
        _write(path, "".join(f"{line}\n" for line in survey.bad).encode())


def _tell(name: str, value: str) -> None:
    print(f"{name:<22}{value}")


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise DataError(
            f"{path} cannot be written: {error.strerror}; choose another folder with --out"
        ) from None
    print(path)


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
    _tell_bad(survey, options.out / f"{name}-bad.txt")
    return _BAD_STATUS if survey.bad else 0


if __name__ == "__main__":
    run_stoppable(main)
