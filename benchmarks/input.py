"""How fast a record set is read in batches.

    python -m benchmarks.input [--rec DIR] [--images N] [--threads 1,2]

Four ways are measured in turns: decoding alone, in as many threads (``raw``), a lower bound for any
input; the loader of this project (``ours``), and with colors that are changed, a square put on each
image and small identities left out (``changing``); and one thread of Python that reads and decodes
record by record with MXNet's functions, as the published iterators for these files do
(``iterator``). The report goes to the standard output.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Optional

import cv2
import numpy as np
from typing_extensions import override

from benchmarks import measure
from benchmarks.measure import Case, Variant
from benchmarks.worker import Subject
from data.batches.face_loader import FaceLoader
from data.drawn import face_set
from data.options import FaceDataOptions
from data.records.record_set import RecordSet
from runtime.command_line import positive_integer
from runtime.errors import run_program

WAYS = {
    "raw": "RawDecoding",
    "ours": "ToolkitLoader",
    "changing": "ChangingLoader",
    "iterator": "MXNetIterator",
}
BATCH = 64
_SEED = 1
_SAID = """Medians of {} rounds, in each of which every way takes {:,} images, in batches of {}.
"× x" is the speed of the row divided by that of x in the same round; raw decodes what is in memory
already and keeps nothing of it; changing is ours with --min-images 2 --color-jitter 0.2 --cutout
0.3. All files are in the page cache."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure and print the report."""
    options = _parse(argv)
    images = max(1, options.images // BATCH) * BATCH
    with ExitStack() as stack:
        rec = options.rec or Path(stack.enter_context(TemporaryDirectory())) / "drawn"
        if options.rec is None:
            face_set.ensure(rec, face_set.DrawnFaces(50, 40, (112, 112), seed=1))
        cases = _cases(RecordSet(rec), images, options)
        sections = measure.sections(cases, options.rounds, column="input", sign="×")
    measure.print_report(
        "Input, decoding alone and a plain iterator",
        _SAID.format(options.rounds, images, BATCH),
        sections,
    )


def _cases(records: RecordSet, images: int, options: argparse.Namespace) -> Iterator[Case]:
    name = records.path.resolve().parent.name if options.rec else "drawn faces"
    height, width = records.image_size
    # Without it, MXNet's functions cannot read the set.
    has_index = records.path.with_suffix(".idx").is_file()
    for threads in options.threads:
        arguments = {"rec": str(records.path), "images": images, "threads": threads}
        variants = {
            way: Variant(f"benchmarks.input:{subject}", arguments)
            for way, subject in WAYS.items()
            if has_index or way != "iterator"
        }
        title = f"{name}, {len(records):,} images of {height} x {width}, threads={threads}"
        yield Case(title, threads, variants, images)


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = measure.parser("input", __doc__)
    rec_help = "a record set (without: faces drawn for the purpose)"
    parser.add_argument("--rec", type=Path, metavar="DIR", help=rec_help)
    images_help = "taken in a turn (%(default)s)"
    parser.add_argument("--images", type=positive_integer, default=16_384, help=images_help)
    return parser.parse_args(argv)


class RawDecoding(Subject):
    """Decoding alone, of images that are in memory: a lower bound."""

    def __init__(self, rec: str, images: int, threads: int) -> None:
        """Args: the set, how many of its images are decoded per step, and in how many threads."""
        dataset = RecordSet(rec)
        chosen = np.random.default_rng(_SEED).permutation(len(dataset)).tolist()
        payloads = [bytes(dataset.image(index)[0]) for index in chosen[:images]]
        encoded = [np.frombuffer(payload, np.uint8) for payload in payloads]
        wanted = list(islice(cycle(encoded), images))
        self._parts = [wanted[thread::threads] for thread in range(threads)]
        cv2.setNumThreads(0)

    @override
    def step(self) -> None:
        with ThreadPoolExecutor(len(self._parts)) as pool:
            list(pool.map(_decode, self._parts))


def _decode(images: list[Any]) -> None:
    for image in images:
        # As the loader decodes: to RGB, without rotating by EXIF.
        cv2.imdecode(image, cv2.IMREAD_COLOR_RGB)


class ToolkitLoader(Subject):
    """The loader, as a run uses it, without training on the batches."""

    _OPTIONS: Mapping[str, Any] = {}

    def __init__(self, rec: str, images: int, threads: int) -> None:
        """Args: see ``RawDecoding``."""
        self._batches = images // BATCH
        self._update = 0
        self._loader = FaceLoader(
            RecordSet(rec),
            FaceDataOptions(batch_size=BATCH, threads=threads, **self._OPTIONS),
            rank=0,
            world_size=1,
            seed=_SEED,
        )

    @override
    def step(self) -> None:
        # Nothing is decoded ahead when the clock starts, as it would be by an iterator that goes on
        # while other subjects are measured.
        batches = self._loader.batches(self._update)
        for _ in islice(batches, self._batches):
            self._update += 1
        # Leaving the generator discards what it has queued ahead.
        del batches


class ChangingLoader(ToolkitLoader):
    """The loader with ``--min-images 2 --color-jitter 0.2 --cutout 0.3``."""

    _OPTIONS: Mapping[str, Any] = {"min_images": 2, "color_jitter": 0.2, "cutout": 0.3}


class MXNetIterator(Subject):
    """One thread of Python that reads and decodes records one by one with MXNet's functions."""

    def __init__(self, rec: str, images: int, threads: int) -> None:
        """Args: see ``RawDecoding``; of the threads only one is used."""
        del threads
        from runtime.mxnet import mx

        dataset = RecordSet(rec)
        self._mx = mx
        self._batches = images // BATCH
        self._keys = [dataset.key(index) for index in range(len(dataset))]
        self._shape = (BATCH, 3, *dataset.image_size)
        index = dataset.path.with_suffix(".idx")
        self._file = mx.recordio.MXIndexedRecordIO(str(index), str(dataset.path), "r")
        self._random = random.Random(_SEED)
        self._random.shuffle(self._keys)

    @override
    def step(self) -> None:
        mx = self._mx
        keys = cycle(self._keys)
        for _ in range(self._batches):
            images, labels = mx.nd.empty(self._shape), mx.nd.empty(BATCH)
            for row, key in enumerate(islice(keys, BATCH)):
                header, encoded = mx.recordio.unpack(self._file.read_idx(key))
                image = mx.image.imdecode(encoded)
                if self._random.random() < 0.5:
                    image = mx.nd.flip(image, axis=1)
                images[row] = mx.nd.transpose(image, axes=(2, 0, 1))
                labels[row] = float(np.ravel(header.label)[0])
            mx.nd.waitall()


if __name__ == "__main__":
    run_program(main)
