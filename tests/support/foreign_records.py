"""Record files in the orders in which other programs write them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import cv2

from data.images.image_set import DrawnImages
from data.records.recordio import encode

Numbered = tuple[int, bytes]
"""A key, and the record with it in its header."""


def face2rec2(labels: Sequence[int], payloads: Sequence[bytes]) -> list[Numbered]:
    """Return what InsightFace's face2rec2.py writes of a list: images, record 0, then the ranges.

    A range ends where the label changes; of an unsorted list a person has several.
    """
    images = [
        (key, encode((float(label), 1.0), key, payload))
        for key, (label, payload) in enumerate(zip(labels, payloads), 1)
    ]
    sizes = [len(list(group)) for _, group in groupby(labels)]
    bounds = list(itertools.accumulate(sizes, initial=1))
    pairs = list(enumerate(zip(bounds, bounds[1:]), bounds[-1]))
    ranges = [(key, encode((float(start), float(end)), key, b"")) for key, (start, end) in pairs]
    people = (float(bounds[-1]), float(bounds[-1] + len(ranges)))
    return [*images, (0, encode(people, 0, b"")), *ranges]


def rec_builder(labels: Sequence[int], payloads: Sequence[bytes]) -> list[Numbered]:
    """Return what InsightFace's rec_builder.py writes: images, the ranges, record 0 last."""
    written = face2rec2(labels, payloads)
    return [*written[: len(labels)], *written[len(labels) + 1 :], written[len(labels)]]


def im2rec(
    labels: Sequence[float], payloads: Sequence[bytes], keys: Sequence[int]
) -> list[Numbered]:
    """Return what MXNet's im2rec.py writes: images alone, in any order of their keys."""
    rows = zip(keys, labels, payloads)
    return [(key, encode((float(label),), key, payload)) for key, label, payload in rows]


def index_of(records: Sequence[Numbered]) -> str:
    offsets = itertools.accumulate((len(content) for _, content in records), initial=0)
    return "".join(f"{key}\t{offset}\n" for (key, _), offset in zip(records, offsets))


def write_records(
    folder: Path, records: Sequence[Numbered], *, index: bool = True, description: str = ""
) -> Path:
    """Write train.rec, train.idx if there is to be an ``index``, and ``property`` if described."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.rec").write_bytes(b"".join(content for _, content in records))
    if index:
        (folder / "train.idx").write_text(index_of(records))
    if description:
        (folder / "property").write_text(description)
    return folder


def write_cifar(folder: Path, training: int, validation: int, seed: int = 1) -> None:
    """Write CIFAR-10 as Grouping-SGD has it: ``train.rec`` and ``test.rec`` of drawn images."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, part, count in (("train", "training", training), ("test", "validation", validation)):
        drawn = DrawnImages(part, num_classes=10, count=count, shape=(32, 32, 3), seed=seed)
        images, labels = zip(*map(drawn.decoded, range(count)))
        encoded = [cv2.imencode(".png", image[:, :, ::-1])[1].tobytes() for image in images]
        records = im2rec(labels, encoded, range(count))
        (folder / f"{name}.rec").write_bytes(b"".join(record for _, record in records))
        (folder / f"{name}.idx").write_text(index_of(records))
