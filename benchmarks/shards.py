"""How soon a set of shards is open, and how much memory it takes: by default of a billion images.

    python -m benchmarks.shards [--shards N] [--records N] [--folder DIR] [--json FILE]

The shards are made up: sparse files without images, and the caches that a first opening of such
files would leave beside them, 13 bytes for each record. A process of its own opens them, as a run
does from its second start on, and takes the images of the first batches from the order of an epoch;
another one does so with ``--min-images``, which reads all labels. The files are in the page cache
as far as it is large enough. The report goes to the standard output.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Optional

import numpy as np
from typing_extensions import override

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import measure
from benchmarks.worker import Subject, Worker
from data.batches.order import epoch_keys
from data.batches.selection import Selection
from data.records.index_cache import write_cache
from data.records.shards import open_sets, shard_path
from runtime.command_line import Parser, positive_integer
from runtime.errors import run_program

_IMAGES_PER_IDENTITY = 10
_RECORD_WORDS = 1024
_BATCH, _BATCHES = 64, 1000
WAYS = {"again": 0, f"again, --min-images {_IMAGES_PER_IDENTITY}": _IMAGES_PER_IDENTITY}


class ShardsOpening(Subject):
    """Opens the set, and takes the images of some batches from the order of an epoch."""

    def __init__(self, folder: str, min_images: int) -> None:
        """Args: the set, and the images that an identity must have."""
        self._folder, self._min_images = folder, min_images

    @override
    def step(self) -> None:
        dataset = open_sets([self._folder])
        selection = Selection(dataset, self._min_images)
        keys = epoch_keys(1)
        last = len(selection) // _BATCH
        for number in range(_BATCHES):
            selection.order(keys, _BATCH * (number % last), _BATCH)


def make_shards(folder: Path, shards: int, records: int) -> None:
    """Write shards of ``records`` records each, sparse, and their caches."""
    identities = -(-records // _IMAGES_PER_IDENTITY)
    index = {
        "offsets": np.arange(1, records + 1, dtype="<i8") * 4 * _RECORD_WORDS,
        "identity_offsets": np.arange(identities) * 4 * _RECORD_WORDS,
        "first_key": np.ones(1, "<i8"),
        "keys": np.empty(0, "<i8"),
    }
    labels = np.arange(records, dtype="<i4") // _IMAGES_PER_IDENTITY
    for number in range(shards):
        path = shard_path(folder, number)
        with path.open("wb") as file:
            file.truncate(4 * _RECORD_WORDS * (records + 2))
        sources = (path, path.with_suffix(".idx"))
        write_cache(path.with_suffix(".idx.cache"), sources, index)
        write_cache(path.with_suffix(".labels.cache"), sources, {"labels": labels})
    (folder / "property").write_text(f"{shards * identities},112,112\n")


def compare(folder: Path, rounds: int) -> dict[str, tuple[list[float], Optional[int]]]:
    """Open the shards in turns, each way in a process; returns seconds and peak bytes of each."""
    with ExitStack() as stack:
        workers = {}
        for way, min_images in WAYS.items():
            workers[way] = stack.enter_context(Worker("benchmarks.shards:ShardsOpening", 1))
            workers[way].create({"folder": str(folder), "min_images": min_images})
            # Compiles, and fills the page cache.
            workers[way].step()
        seconds = measure.interleave({way: workers[way].step for way in WAYS}, rounds)
        return {way: (seconds[way], workers[way].peak_memory()) for way in WAYS}


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print the report and write the rows."""
    options = _parse(argv)
    images = options.shards * options.records
    case = f"{options.shards:,} shards, {images:,} images"
    with TemporaryDirectory(dir=options.folder) as folder:
        free = shutil.disk_usage(folder).free
        print(f"making {case}; {free / 1e9:.0f} GB are free", file=sys.stderr)
        make_shards(Path(folder), options.shards, options.records)
        print(f"measuring {case}", file=sys.stderr)
        openings = compare(Path(folder), options.rounds)
    lines = [
        [
            way,
            f"{statistics.median(seconds):.2f}",
            f"{min(seconds):.2f} … {max(seconds):.2f}",
            "" if peak is None else f"{peak / 2**20:,.0f}",
        ]
        for way, (seconds, peak) in openings.items()
    ]
    print(
        f"# Opening {case}\n\n{measure.machine()}\n\nMedians of {options.rounds} rounds; an "
        f"opening ends with the images of {_BATCHES:,} batches of {_BATCH}.\n\n"
        + measure.markdown_table(["opened", "s", "from … to", "peak (MiB)"], lines)
    )
    if options.json:
        rows = [
            measure.Row(case, way, statistics.median(seconds), "s")
            for way, (seconds, _) in openings.items()
        ]
        measure.write_json(options.json, rows)


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.shards", description="Measure the opening of a set of shards."
    )
    add = parser.add_argument
    add("--shards", type=positive_integer, default=1000, help="how many (%(default)s)")
    records_help = "of each shard (%(default)s)"
    add("--records", type=positive_integer, default=1_000_000, help=records_help)
    add("--folder", type=Path, help="where the files are made, for a while (a temporary folder)")
    measure.add_options(parser)
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_program(main)
