from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from data import fingerprint as module
from data.fingerprint import describe, find_difference, fingerprint

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
