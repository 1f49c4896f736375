from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.errors import ConfigError, DataError
from runtime.files import StagedFiles, new_folder, write_atomically


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


def test_it_appears_when_it_is_complete(tmp_path) -> None:
    (tmp_path / "out").mkdir()
    with new_folder(tmp_path / "out") as hidden:
        hidden.mkdir()
        (hidden / "a").write_text("1")
        assert not list((tmp_path / "out").iterdir())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "a").read_text() == "1"


@pytest.mark.parametrize("error", [DataError("broken"), KeyboardInterrupt()])
def test_what_ends_early_leaves_nothing(tmp_path, error) -> None:
    with pytest.raises(type(error)), new_folder(tmp_path / "out") as hidden:
        hidden.mkdir()
        (hidden / "a").write_text("1")
        raise error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["out", ".out.part"])
def test_nothing_is_overwritten(tmp_path, name) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "a").write_text("1")
    with pytest.raises(ConfigError, match=f"{name} exists already"), new_folder(tmp_path / "out"):
        raise AssertionError
    assert (tmp_path / name / "a").read_text() == "1"


def test_a_full_disk_is_one_line(tmp_path) -> None:
    with pytest.raises(DataError, match="cannot be written: No space"), new_folder(tmp_path / "o"):
        raise OSError(28, "No space left on device")
