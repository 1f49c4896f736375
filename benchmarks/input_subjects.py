"""The readers of images that ``benchmarks.input`` compares."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import cycle, islice
from threading import Thread
from typing import Any

import cv2
import numpy as np
from typing_extensions import override

from benchmarks.worker import Subject
from data.batches.face_loader import FaceLoader
from data.options import FaceDataOptions
from data.records.record_set import RecordSet

BATCH = 64
_SEED = 1


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
        threads = [Thread(target=_decode, args=(part,)) for part in self._parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


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
