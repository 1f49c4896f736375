"""Record sets of our own writer, what folders and sets hold, and refusals in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from data.records.writer import RecordWriter
from runtime.errors import DataError


def pack_set(
    path: Path, images: Iterable[bytes], labels: Iterable[int], size: tuple[int, int] = (16, 16)
) -> Path:
    """Write a set of encoded images, which are sorted by their labels; return its path."""
    with RecordWriter(path, image_size=size) as writer:
        for image, label in zip(images, labels):
            writer.write(image, label)
    return path


def images_of(records: Any) -> list[tuple[bytes, int]]:
    """Return all images of a set with their labels."""
    read = map(records.image, range(len(records)))
    return [(bytes(payload), label) for payload, label in read]


def contents(folder: Path) -> dict[str, bytes]:
    """Return what the files in a folder hold, at any depth, by their paths within it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def overwrite(folder: Path, key: int, content: bytes, at: int = 0) -> Path:
    """Write into a record of a set, ``at`` so many bytes from its start; return the set's path."""
    offsets = dict(line.split("\t") for line in (folder / "train.idx").read_text().splitlines())
    with (folder / "train.rec").open("r+b") as file:
        file.seek(int(offsets[str(key)]) + at)
        file.write(content)
    return folder


@contextmanager
def refused(message: str, kind: Any = DataError) -> Iterator[None]:
    """Check that an error of a kind is raised, whose message matches and has one line."""
    with pytest.raises(kind, match=message) as caught:
        yield
    assert "\n" not in str(caught.value)
