"""Make a folder of images per identity from a record set: the way back from ``data.pack``.

    python -m data.unpack datasets/faces FACES [--max-images N]

An image of class 7 becomes ``id_000007/000007_0000123.jpg``, where 123 counts all images; the bytes
are copied, and say which ending the file gets. Numbers have leading zeros, so that ``data.pack``,
which goes by name, gives every identity that has images its place again. The folder gets its name
when all images are in it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from data.decoding import ending_of
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError
from data.worker_threads import say, track
from runtime.command_line import Parser, positive_integer
from runtime.errors import print_line, run_stoppable
from runtime.files import create, new_folder


def unpack(records: RecordSet, folder: Path, count: int) -> int:
    """Write the first ``count`` images into folders; return how many were broken, and left out.

    Raises:
        OSError: a file cannot be written.
        DataError: a label is not one of the classes.
    """
    label_digits, image_digits = len(str(records.num_classes - 1)), len(str(len(records) - 1))
    made, bad = set(), 0
    for index in track(range(count), count, "unpacking images"):
        try:
            payload, number = records.image(index)
            ending = ending_of(payload)
        except BrokenRecordError as error:
            bad += 1
            where = f"{records.where(index)}: "
            say(where + str(error).removeprefix(where))
            continue
        label = f"{number:0{label_digits}}"
        identity = folder / f"id_{label}"
        if number not in made:
            identity.mkdir()
            made.add(number)
        with create(identity / f"{label}_{index:0{image_digits}}{ending}") as file:
            file.write(payload)
    return bad


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m data.unpack",
        description="Write the images of a record set into a folder per identity. Exit status: 1 "
        "if some are broken, which are named and left out.",
    )
    add = parser.add_argument
    add("path", type=Path, help="a .rec file, or a folder with one")
    add("out", type=Path, help="the folder to make; an existing one has to be empty")
    max_help = "only the first N images"
    add("--max-images", type=positive_integer, metavar="N", help=max_help)
    return parser.parse_args(argv)


def main() -> int:
    """Unpack what the command line asks for; return the exit status."""
    options = _parse(sys.argv[1:])
    out: Path = options.out
    with new_folder(out) as hidden:
        records = RecordSet(options.path)
        count = min(len(records), options.max_images or len(records))
        bad = unpack(records, hidden, count)
    print_line(f"{out}: {count - bad:,} images" + (f", without {bad:,} broken ones" if bad else ""))
    return 1 if bad else 0


if __name__ == "__main__":
    run_stoppable(main)
