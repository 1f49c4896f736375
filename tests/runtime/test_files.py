from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.files import StagedFiles, write_atomically


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Files cannot grow beyond 64 KiB, which the kernel reports as it does a full disk."""
    import signal

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, former)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_appear_together(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with StagedFiles() as files:
        files.open(tmp_path / "a").write(b"new a")
        files.open(tmp_path / "b").write(b"new b")
        assert (tmp_path / "a").read_bytes() == b"old" and not (tmp_path / "b").exists()
    assert names(tmp_path) == ["a", "b"]
    assert (tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes() == b"new anew b"


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(KeyError), StagedFiles() as files:
        files.open(tmp_path / "a").write(b"new")
        raise KeyError
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"old"


@pytest.mark.parametrize("size", [1 << 17, 1 << 22])
def test_a_full_disk_leaves_what_was_there(full_disk: None, tmp_path: Path, size: int) -> None:
    """Whether the buffer is written in between or only at the end."""
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(OSError) as caught:
        write_atomically(tmp_path / "a", bytes(size))
    assert caught.value.errno == errno.EFBIG
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_bytes() == b"old"


def test_all_files_are_flushed_before_any_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[list[str]] = []
    flush = os.fsync

    def record_names(file: int) -> None:
        events.append(names(tmp_path))
        flush(file)

    monkeypatch.setattr(os, "fsync", record_names)
    with StagedFiles() as files:
        for name in ("a", "b"):
            files.open(tmp_path / name).write(b"x")
    parts = [f".{name}.{os.getpid()}.part" for name in ("a", "b")]
    assert events == [parts, parts, ["a", "b"]]
