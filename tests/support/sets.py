"""Record sets of our own writer, what folders and sets hold, and refusals in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
    read = map(records.image, range(len(records)))
    return [(bytes(payload), label) for payload, label in read]


def contents(folder: Path) -> dict[str, bytes]:
    """Return what the files in a folder hold, at any depth, by their paths within it."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def write_files(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def overwrite(folder: Path, key: int, content: bytes, at: int = 0) -> Path:
    """Write into a record of a set, ``at`` so many bytes from its start; return the set's path."""
    offsets = dict(line.split("\t") for line in (folder / "train.idx").read_text().splitlines())
    with (folder / "train.rec").open("r+b") as file:
        file.seek(int(offsets[str(key)]) + at)
        file.write(content)
    return folder


def assert_refused(
    message: str, call: Callable[..., Any], *arguments: Any, kind: Any = DataError, **options: Any
) -> None:
    """Check that a call ends with an error of a kind, whose message matches and has one line."""
    with pytest.raises(kind, match=message) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
