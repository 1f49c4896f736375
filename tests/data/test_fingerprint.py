from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from data import contents
from data import fingerprint as module
from data.contents import Images
from data.fingerprint import describe, find_difference, fingerprint
from runtime.errors import DataError


class Listed:
    """Images that are their bytes and their classes; None is a broken one."""

    def __init__(self, images, files: str = "") -> None:
        self._images, self._files = images, files or str(images)
        self.read = 0

    def __len__(self) -> int:
        return len(self._images)

    def image(self, index: int):
        self.read += 1
        if self._images[index] is None:
            raise DataError("broken")
        return self._images[index]

    def fingerprint(self) -> str:
        return self._files


def grouped(counts, first: int = 0) -> list[Any]:
    """So many images of each class, from a number on that other sets do not have."""
    return [
        (b"%d %d" % (label, first + number), label)
        for label, count in enumerate(counts)
        for number in range(count)
    ]


def test_what_is_said_of_a_set() -> None:
    images = Listed([(b"123456789", 4), None, (b"", 2)], "here")
    assert isinstance(images, Images)
    # The check value of CRC-32.
    sample = [[0, 4, 0xCBF43926], [2, 2, 0]]
    assert contents.describe(images) == {"images": 3, "fingerprint": "here", "sample": sample}
    # Of many, a sample is read.
    images = Listed(grouped([10_000]))
    places = [place for place, _, _ in contents.describe(images)["sample"]]
    assert images.read == len(places) == 64 and (places[0], places[-1]) == (0, 9999)


ALL = grouped([30] * 20)
# Three further images of each class, before its images.
WITHIN = sorted([*((b"new", label) for label in [*range(20)] * 3), *ALL], key=lambda one: one[1])
MIXED = [ALL[7 * number % len(ALL)] for number in range(len(ALL))]
A, B, C = (b"a", 0), (b"b", 1), (b"c", 2)


@pytest.mark.parametrize(("before", "now", "has_grown"), [
    (ALL, ALL, None),
    (ALL, [*ALL, (b"new", 19)], True),
    (ALL, WITHIN, True),
    (MIXED, [*MIXED, (b"new", 0)], True),
    ([A, None], [A, None, B], True),
    ([A, None, C], [A, None, B, C], True),
    # As many others, and more others; fewer.
    (ALL, grouped([30] * 20, 99), False),
    (ALL, grouped([31] * 20, 99), False),
    (ALL, ALL[:-1], False),
    # One more, which says nothing of the others that are missing.
    (grouped([2] * 5), [*grouped([2] * 4), (b"x", 4), (b"y", 4), (b"z", 4)], False),
    # Other classes of the same images, and another order.
    ([A, B], [(b"a", 1), (b"b", 0), (b"c", 1)], False),
    # Nothing could be read; one that is in no sample counts by the files.
    ([None], [A, B], False),
    (ALL, [*ALL[:3], (b"other", 0), *ALL[4:]], False),
])  # fmt: skip
def test_differences(before, now, has_grown) -> None:
    saved = json.loads(json.dumps(contents.describe(Listed(before))))
    images = Listed(now)
    text = f"{len(before)} images there, {len(now)} here"
    text += ", of which some are others" * (has_grown is False and len(now) >= len(before))
    expected = None if has_grown is None else (has_grown, text)
    assert contents.find_difference(images, contents.describe(images), saved) == expected


@pytest.mark.parametrize(("before", "has_grown"), [(4, True), (5, False)])
def test_few_images_of_a_large_class_are_read(monkeypatch, before: int, has_grown: bool) -> None:
    monkeypatch.setattr(contents, "_LOOKED_AT", 5)
    images = Listed([A, *[(b"new", 1)] * before, B])
    said = map(contents.describe, (images, Listed([A, B])))
    found = contents.find_difference(images, *said)
    assert found is not None and found.has_grown == has_grown


def test_what_a_damaged_checkpoint_says_of_images() -> None:
    images = Listed(grouped([2]))
    said = contents.describe(images)
    saved: list[Any] = [None, "none", 7, [], {}]
    saved += [{**said, "images": wrong} for wrong in ("many", None, float("inf"))]
    saved += [{**said, "sample": wrong} for wrong in (7, [1], [[0, 0]], [[0, "a", 0]])]
    assert all(contents.find_difference(images, said, one) is None for one in saved)
    for place in (-1, 2**70, -(2**70)):
        found = contents.find_difference(images, said, {"images": 1, "sample": [[place, 2**70, 0]]})
        assert found is not None and not found.has_grown


LARGE = module._READ_WHOLE + 12345


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (old,) = file.read(1)
        file.seek(offset)
        file.write(bytes([old ^ 1]))


def test_what_is_said_of_a_file(tmp_path) -> None:
    (tmp_path / "property").write_bytes(b"123456789")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    # The check value of CRC-32.
    expected = {
        "property": "9 bytes, checksum cbf43926",
        "none": "missing",
        "pipe": "unreadable (it is not a regular file)",
        "loop": "unreadable (Too many levels of symbolic links)",
    }
    found = fingerprint([tmp_path / name for name in expected])
    assert found == {str(tmp_path / name): said for name, said in expected.items()}


@pytest.mark.parametrize(("size", "offsets"), [
    (8192, [0, 1, 4096, 8191]),
    # Blocks of a large one: the first, one between and the last.
    (LARGE, [0, 4095, (LARGE - 4096) // 63, LARGE - 4096, LARGE - 1]),
])  # fmt: skip
def test_bytes_and_size_count(tmp_path, size: int, offsets: list[int]) -> None:
    """Of a large file little is read."""
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, size)
    said = [describe(path)]
    for offset in offsets:
        flip(path, offset)
        said.append(describe(path))
    assert len({*said}) == len(said) and all(one.startswith(f"{size:,} bytes") for one in said)
    os.truncate(path, size - 1)
    assert describe(path).startswith(f"{size - 1:,} bytes")
    os.truncate(path, 1 << 40)
    began = time.process_time()
    describe(path)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("change", [
    lambda folder: (folder / "cat/1.jpg").rename(folder / "dog/9.jpg"),
    lambda folder: (folder / "cat").rename(folder / "bat"),
    lambda folder: (folder / "emu").mkdir(),
    lambda folder: (folder / "dog/2.jpg").write_bytes(b"dog3"),
    lambda folder: (folder / "cat/deep/1.jpg").write_bytes(b"cat"),
])  # fmt: skip
def test_a_folder_of_other_images_differs(tmp_path, change) -> None:
    images = {f"{name}/{n}.jpg": f"{name}{n}" for name in ("cat", "dog") for n in range(3)}
    # Files that are no images, and what is no class, do not count.
    others = ("cat/notes.txt", "cat/.hidden.jpg", "list.txt", "__MACOSX/1.jpg")
    said = []
    (tmp_path / "cat/deep").mkdir(parents=True)
    for name, content in {**images, **dict.fromkeys(others, "x")}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
        said.append(describe(tmp_path))
    change(tmp_path)
    assert said[5].startswith("6 images of 2 classes, checksum ")
    assert {*said[5:]} == {said[5]} != {describe(tmp_path)}


OURS, THEIRS = {"a": "1 byte", "b": "2 bytes"}, {"a": "1 byte", "b": "3 bytes"}


@pytest.mark.parametrize(("hosts", "expected"), [
    ([OURS, OURS], ""),
    # A name that a host does not know is missing there, as it may be everywhere.
    ([{"a": "missing"}, {}], ""),
    ([OURS, THEIRS], "host1 has another b than host0: 3 bytes, not 2 bytes"),
    # Of three, the one that differs from most.
    ([THEIRS, OURS, OURS], "host0 has another b than host1: 3 bytes, not 2 bytes"),
    ([{"a": "1 byte"}, {"b": "2"}], "host1 has another a than host0: missing, not 1 byte"),
])  # fmt: skip
def test_the_host_that_differs_is_named(hosts: list[dict[str, str]], expected: str) -> None:
    named = [(f"host{number}", files) for number, files in enumerate(hosts)]
    assert find_difference(named) == expected
