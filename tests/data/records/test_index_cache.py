from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from data.records import index_cache
from data.records.index_cache import cached_arrays

ARRAYS = {
    "offsets": np.arange(5, dtype=np.int64) * 2**40,
    "labels": np.array([1, -1, 3], dtype=np.int32),
    "none": np.empty(0, dtype=np.int64),
}


@pytest.fixture
def read(tmp_path: Path):
    """Return a function that reads the cache and tells whether it had to be built."""
    (tmp_path / "source").write_text("first")

    def read_or_build() -> bool:
        built: list[bool] = []
        sources = [tmp_path / "source", tmp_path / "absent"]
        arrays = cached_arrays(
            tmp_path / "cache", sources, lambda: built.append(True) or ARRAYS,
            lambda found: found.keys() == ARRAYS.keys(),
        )  # fmt: skip
        assert list(arrays) == list(ARRAYS)
        for name, array in ARRAYS.items():
            assert arrays[name].dtype == array.dtype and np.array_equal(arrays[name], array)
            # Mapped from the file, and not what this process has built.
            assert not arrays[name].flags.writeable
        return bool(built)

    return read_or_build


def test_arrays_are_built_once_and_again_when_a_source_changes(read, tmp_path) -> None:
    assert [read(), read(), read()] == [True, False, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "source"]
    source = tmp_path / "source"
    status = source.stat()
    source.write_text("longer")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [read(), read()] == [True, False]
    os.utime(source, ns=(1, 1))
    assert [read(), read()] == [True, False]
    source.with_name("absent").write_text("")
    assert [read(), read()] == [True, False]


def test_any_damage_is_found(read, tmp_path) -> None:
    read()
    cache = tmp_path / "cache"
    whole = cache.read_bytes()
    for position in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        cache.write_bytes(damaged)
        if read():
            assert cache.read_bytes() == whole
        else:
            # Only the padding of the header may differ unnoticed.
            assert bytes(damaged).split() == whole.split() or damaged[position] != 0x20
    key = index_cache.key_of([tmp_path / "source", tmp_path / "absent"])
    index_cache.write_cache(cache, key, {**ARRAYS, "none": np.empty(0, np.float64)})
    assert [read(), read()] == [True, False]
    for content in (b"", b"\n", b"[]\n", b"{}\n", b"\x80\x04N.", b"x" * 9000, whole[:-1]):
        cache.write_bytes(content)
        assert [read(), read()] == [True, False], content


def test_links_are_neither_followed_nor_a_traceback(read, tmp_path, caplog) -> None:
    """Whoever made the folder may have put links under the names of caches."""
    (tmp_path / "user").write_bytes(b"precious")
    for name in ("cache", f".cache.{os.getpid()}.part", ".cache.part"):
        (tmp_path / name).symlink_to("user")
    assert [read(), read()] == [True, False]
    assert (tmp_path / "user").read_bytes() == b"precious"
    assert not (tmp_path / "cache").is_symlink()
    for name in ("cache", "source", "absent"):
        for old in (name, "cache"):
            (tmp_path / old).unlink(missing_ok=True)
        (tmp_path / name).symlink_to(name)
        assert read()
    # Where nothing can be written, arrays are built without a cache.
    caplog.set_level(logging.INFO)
    arrays = cached_arrays(tmp_path / "no folder" / "cache", [], lambda: ARRAYS, lambda _: True)
    assert arrays is ARRAYS and "cannot be written" in caplog.text
