"""Record files in the orders in which other programs write them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

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
    ranges, key = [], 1
    for _, group in groupby(labels):
        start, key = key, key + len(list(group))
        ranges.append((float(start), float(key)))
    first, last = len(images) + 1, len(images) + 1 + len(ranges)
    return [
        *images,
        (0, encode((float(first), float(last)), 0, b"")),
        *((key, encode(bounds, key, b"")) for key, bounds in enumerate(ranges, first)),
    ]


def rec_builder(labels: Sequence[int], payloads: Sequence[bytes]) -> list[Numbered]:
    """Return what InsightFace's rec_builder.py writes: images, the ranges, record 0 last."""
    written = face2rec2(labels, payloads)
    return [*written[: len(labels)], *written[len(labels) + 1 :], written[len(labels)]]


def im2rec(
    labels: Sequence[float], payloads: Sequence[bytes], keys: Sequence[int]
) -> list[Numbered]:
    """Return what MXNet's im2rec.py writes: images alone, in any order of their keys."""
    return [
        (key, encode((float(label),), key, payload))
        for key, label, payload in zip(keys, labels, payloads)
    ]


def index_of(records: Sequence[Numbered]) -> str:
    """Return the .idx that MXNet writes with the records."""
    lines, offset = [], 0
    for key, content in records:
        lines.append(f"{key}\t{offset}\n")
        offset += len(content)
    return "".join(lines)


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
