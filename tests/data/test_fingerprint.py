"""Copies that differ are told apart, and the host that has another one is named."""

from __future__ import annotations

import os
import zlib
from functools import partial
from pathlib import Path

import pytest

from data import fingerprint as module
from data.fingerprint import find_difference, fingerprint

LARGE = module._READ_WHOLE + 12345


def large(path: Path, size: int = LARGE) -> Path:
    """A sparse file with a number at every block that is read."""
    with path.open("wb") as file:
        file.truncate(size)
    return path


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        old = file.read(1)
        file.seek(offset)
        file.write(bytes([old[0] ^ 1]))


def changed_by(path: Path, change) -> tuple[str, str]:
    (before,) = fingerprint([path]).values()
    change()
    (after,) = fingerprint([path]).values()
    return before, after


def test_what_is_said_of_a_file(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("offset", [0, 1, 4096, 8191])
def test_every_byte_of_a_small_file_counts(tmp_path: Path, offset: int) -> None:
    path = large(tmp_path / "small", 8192)
    before, after = changed_by(path, lambda: flip(path, offset))
    assert before.startswith("8,192 bytes") and before != after


@pytest.mark.parametrize("offset", [0, 4095, (LARGE - 4096) // 63, LARGE - 4096, LARGE - 1])
def test_first_last_and_spread_blocks_of_a_large_file_count(tmp_path: Path, offset: int) -> None:
    path = large(tmp_path / "large")
    before, after = changed_by(path, lambda: flip(path, offset))
    assert before.split(",")[:3] == after.split(",")[:3] and before != after
    _, shorter = changed_by(path, lambda: os.truncate(path, LARGE - 4096))
    assert before.split()[0] != shorter.split()[0]


def test_little_of_a_large_file_is_read(tmp_path: Path, monkeypatch) -> None:
    read: list[int] = []
    crc32 = zlib.crc32
    monkeypatch.setattr(
        zlib, "crc32", lambda content, *start: read.append(len(content)) or crc32(content)
    )
    fingerprint([large(tmp_path / "huge", 1 << 40)])
    assert read == [4096] * 64


def images(folder: Path) -> Path:
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(3):
            (folder / name / f"{number}.jpg").write_bytes(f"{name}{number}".encode())
    return folder


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "cat/1.jpg").unlink(),
        lambda folder: (folder / "cat/1.jpg").rename(folder / "dog/9.jpg"),
        lambda folder: (folder / "cat").rename(folder / "bat"),
        lambda folder: (folder / "emu").mkdir(),
        lambda folder: (folder / "dog/2.jpg").write_bytes(b"dog3"),
        lambda folder: (folder / "cat/0.jpg").write_bytes(b"cat"),
    ],
)
def test_a_folder_of_other_images_differs(tmp_path: Path, change) -> None:
    folder = images(tmp_path / "train")
    before, after = changed_by(folder, lambda: change(folder))
    assert before.startswith("6 images of 2 classes, checksum ") and before != after


def test_files_that_are_no_images_do_not_count(tmp_path: Path) -> None:
    folder = images(tmp_path / "train")

    def change() -> None:
        (folder / "cat/notes.txt").write_text("soft")
        (folder / "cat/.hidden.jpg").write_text("x")
        (folder / "list.txt").write_text("x")
        # No class.
        (folder / "__MACOSX").mkdir()
        (folder / "__MACOSX/1.jpg").write_text("x")

    before, after = changed_by(folder, change)
    assert before == after


def test_a_sample_of_many_images_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_BLOCKS", 2)
    folder = images(tmp_path / "train")
    for name, differs in (("cat/0.jpg", True), ("dog/0.jpg", True), ("cat/1.jpg", False)):
        before, after = changed_by(folder, partial((folder / name).write_bytes, b"new"))
        assert (before != after) == differs, name


OURS, THEIRS = {"a": "1 byte", "b": "2 bytes"}, {"a": "1 byte", "b": "3 bytes"}


def test_the_host_that_differs_is_named() -> None:
    assert find_difference([("host1", OURS), ("host2", dict(OURS))]) == ""
    # A name that a host does not know is missing there, as it may be everywhere.
    assert find_difference([("host1", {"a": "missing"}), ("host2", {})]) == ""
    second = find_difference([("host1", OURS), ("host2", THEIRS)])
    assert second == "host2 has another b than host1: 3 bytes, not 2 bytes"
    # Of three, the one that differs from most.
    first = find_difference([("host1", THEIRS), ("host2", OURS), ("host3", OURS)])
    assert first == "host1 has another b than host2: 3 bytes, not 2 bytes"
    lacks = find_difference([("host1", {"a": "1 byte"}), ("host2", {"b": "2 bytes"})])
    assert lacks == "host2 has another a than host1: missing, not 1 byte"
