"""How fast a record set is read in batches, and how soon the first batch can begin.

    python -m benchmarks.input [--rec DIR] [--images N] [--records N] [--threads 1,2] [--json FILE]

Four ways are measured in turns: decoding alone, in as many threads (``raw``), a lower bound for any
input; the loader of this project (``ours``), and with colors that are changed, a square put on each
image and small identities left out (``changing``); and one thread of Python that reads and decodes
record by record with MXNet's functions, as the published iterators for these files do
(``iterator``). Then a set of a million tiny records is opened, without its caches and with them.
The report goes to the standard output.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import measure
from benchmarks.input_subjects import BATCH
from benchmarks.worker import Worker
from data.drawn import face_set
from data.records.record_set import RecordSet
from data.records.writer import RecordWriter
from runtime.command_line import Parser, positive_integer
from runtime.errors import run_program

_SUBJECTS = "benchmarks.input_subjects"
WAYS = {
    "raw": "RawDecoding",
    "ours": "ToolkitLoader",
    "changing": "ChangingLoader",
    "iterator": "MXNetIterator",
}
# The slow one takes an eighth of a turn's images. The others take many: the first hundredths of a
# second of a loader, whose threads wake up, are not to weigh more than they do in an epoch.
_ITERATOR_SHARE = 8
_DRAWN_IDENTITIES, _DRAWN_IMAGES = 50, 40
_IMAGE_SIZE = (112, 112)
_IMAGES_PER_IDENTITY = 10


class Opening(NamedTuple):
    """A way to open a set; the order of all ways matters, as the first ones write caches."""

    cached: bool
    min_images: int

    def __str__(self) -> str:
        """Its name in the report."""
        chosen = f", --min-images {self.min_images}" if self.min_images else ""
        return ("again" if self.cached else "first time") + chosen


OPENINGS = tuple(
    Opening(cached, min_images)
    for cached in (False, True)
    for min_images in (0, _IMAGES_PER_IDENTITY)
)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print the report and write the rows."""
    options = _parse(argv)
    images = max(1, options.images // BATCH) * BATCH
    sections: list[str] = []
    rows: list[measure.Row] = []
    with _record_set(options.rec) as rec:
        for threads in options.threads:
            case = f"{_describe(rec, options.rec is None)}, threads={threads}"
            print(f"measuring {case}", file=sys.stderr)
            speeds = compare(rec, images, threads, options.rounds)
            sections += [f"## {case}", speed_table(speeds)]
            rows += [
                measure.Row(case, way, statistics.median(speed), "images/s")
                for way, speed in speeds.items()
            ]
    case = f"opening {options.records:,} records"
    print(f"measuring {case}", file=sys.stderr)
    openings = compare_openings(options.records, options.rounds)
    sections += [f"## {case}", opening_table(openings, options.records)]
    rows += [
        measure.Row(case, str(opening), statistics.median(seconds), "s")
        for opening, (seconds, _) in openings.items()
    ]
    print("\n\n".join([_introduction(options.rounds, images), *sections]))
    if options.json:
        measure.write_json(options.json, rows)


def compare(rec: Path, images: int, threads: int, rounds: int) -> dict[str, list[float]]:
    """Measure the ways in turns, each in a process of its own; returns images per second.

    Args:
        rec: the set; without an ``.idx``, MXNet's functions cannot read it and are left out.
        images: how many are taken in a turn; of the iterator, an eighth.
        threads: that decode.
        rounds: how many turns each has.
    """
    indexed = RecordSet(rec).path.with_suffix(".idx").is_file()
    taken = {way: images for way in WAYS}
    taken["iterator"] = max(BATCH, images // _ITERATOR_SHARE // BATCH * BATCH)
    with ExitStack() as stack:
        workers = {}
        for way, subject in WAYS.items():
            if way == "iterator" and not indexed:
                continue
            workers[way] = stack.enter_context(Worker(f"{_SUBJECTS}:{subject}", threads))
            workers[way].create({"rec": str(rec), "images": taken[way], "threads": threads})
            workers[way].step()
        seconds = measure.interleave({way: workers[way].step for way in workers}, rounds)
    return {way: [taken[way] / each for each in own] for way, own in seconds.items()}


def compare_openings(records: int, rounds: int) -> dict[Opening, tuple[list[float], Optional[int]]]:
    """Make a set of tiny records and open it in turns; returns seconds and peak bytes of each."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        _write_tiny_records(Path(folder), records)
        workers = {}
        for opening in OPENINGS:
            workers[opening] = stack.enter_context(Worker(f"{_SUBJECTS}:SetOpening", 1))
            workers[opening].create({"rec": folder, **opening._asdict()})
        seconds = measure.interleave(
            {opening: workers[opening].step for opening in workers}, rounds
        )
        return {opening: (seconds[opening], workers[opening].peak_memory()) for opening in workers}


def _write_tiny_records(folder: Path, records: int) -> None:
    with RecordWriter(folder, image_size=_IMAGE_SIZE) as writer:
        for number in range(records):
            writer.write(b"tiny", number // _IMAGES_PER_IDENTITY)


def speed_table(speeds: Mapping[str, Sequence[float]]) -> str:
    """Lay out the images per second of a comparison."""
    lines = [
        [
            way,
            f"{statistics.median(speeds[way]):,.0f}",
            f"{min(speeds[way]):,.0f} … {max(speeds[way]):,.0f}",
            *(f"{measure.ratio(speeds[way], other):.2f}" for other in speeds.values()),
        ]
        for way in speeds
    ]
    header = ["input", "images/s", "from … to", *(f"÷ {way}" for way in speeds)]
    return measure.markdown_table(header, lines)


def opening_table(
    openings: Mapping[Opening, tuple[Sequence[float], Optional[int]]], records: int
) -> str:
    """Lay out the times of opening, and the peak of memory as bytes of each image."""
    lines = [
        [
            str(opening),
            f"{statistics.median(seconds):.3f}",
            f"{min(seconds):.3f} … {max(seconds):.3f}",
            "" if peak is None else f"{peak / records:.1f}",
        ]
        for opening, (seconds, peak) in openings.items()
    ]
    return measure.markdown_table(["opened", "s", "from … to", "peak (bytes per image)"], lines)


@contextmanager
def _record_set(given: Optional[Path]) -> Iterator[Path]:
    """The set of ``--rec``, or a temporary one that is drawn."""
    if given is not None:
        yield given
        return
    with TemporaryDirectory() as folder:
        root = Path(folder) / "drawn"
        face_set.ensure(
            root,
            identities=_DRAWN_IDENTITIES,
            images_per_identity=_DRAWN_IMAGES,
            image_size=_IMAGE_SIZE,
            seed=1,
        )
        yield root


def _describe(rec: Path, drawn: bool) -> str:
    dataset = RecordSet(rec)
    height, width = dataset.image_size
    name = "drawn faces" if drawn else dataset.name
    return f"{name}, {len(dataset):,} images of {height} x {width}"


def _introduction(rounds: int, images: int) -> str:
    return f"""# Input, decoding alone and a plain iterator

{measure.machine()}

Medians of {rounds} rounds, in each of which every way takes {images:,} images (the iterator an
eighth of them), in batches of {BATCH}, and every opening happens once. "÷ x" is the speed of the
row divided by that of x in the same round; raw decodes what is in memory already and keeps nothing
of it; changing is ours with --min-images 2 --color-jitter 0.2 --cutout 0.3. An opening ends with
the order of the first epoch; all files are in the page cache, and the peak holds what is mapped."""


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.input",
        description="Measure the loader, raw decoding and a plain iterator.",
    )
    parser.add_argument(
        "--rec",
        type=Path,
        metavar="DIR",
        help="a record set (without: faces drawn for the purpose)",
    )
    parser.add_argument(
        "--images", type=positive_integer, default=53_248, help="taken in a turn (%(default)s)"
    )
    parser.add_argument(
        "--records",
        type=positive_integer,
        default=1_000_000,
        help="of the set that is opened (%(default)s)",
    )
    measure.add_options(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_program(main)
