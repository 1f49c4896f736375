"""Where the records of a store are, also of one of the first format."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partial_fc.store.header import Header
from partial_fc.store.index import Index
from partial_fc.store.room import Room
from partial_fc.store.saved_rows import SavedRows
from tests.support.stored_head import (
    CLASSES,
    LONE,
    MOMENTUM,
    advance,
    are_equal,
    reference,
    restored,
    stored,
    trained,
)
from tests.support.thread_world import run_ranks

RECORD = 64


def test_the_end_is_behind_the_last_record(monkeypatch: pytest.MonkeyPatch) -> None:
    # Checksums and places; a class without a record may have any place.
    index = Index(np.array([[7, 4], [0, 90], [1, 0], [2, 6], [0, 0]], np.uint32))
    for at_once in (2, 3, 100):
        monkeypatch.setattr("partial_fc.store.index._AT_ONCE", at_once)
        bounds = ((0, 5), (0, 3), (2, 3), (4, 5), (1, 2))
        assert [index.end(*some) for some in bounds] == [7, 5, 1, 0, 0]


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def test_places_follow_each_other(tmp_path: Path) -> None:
    room = Room(opened(tmp_path / "records"), RECORD)
    assert room.take(0).size == (tmp_path / "records").stat().st_size == 0
    taken = [room.take(count) for count in (3, 0, 5000, 7)]
    assert np.array_equal(np.concatenate(taken), np.arange(5010))
    file = opened(tmp_path / "left")
    # The last record was being written by another run, or is of a file that was cut off.
    os.ftruncate(file, 10 * RECORD + 1)
    assert np.array_equal(Room(file, RECORD).take(2), [11, 12])


def test_ranks_get_other_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partial_fc.store.room._AT_ONCE", 3)
    rooms = [Room(opened(tmp_path / "records"), RECORD) for _ in range(4)]
    taken: list[np.ndarray] = []

    def take(room: Room) -> None:
        for count in range(400):
            taken.append(room.take(count % 9))

    threads = [threading.Thread(target=take, args=(room,)) for room in rooms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places = np.concatenate(taken)
    assert np.unique(places).size == places.size == 4 * sum(count % 9 for count in range(400))
    assert places.max() < (tmp_path / "records").stat().st_size // RECORD


@pytest.mark.parametrize("ranks", [1, 3])
def test_records_stand_side_by_side(tmp_path: Path, ranks: int) -> None:
    def run(world: Any) -> None:
        with stored(world, tmp_path, MOMENTUM, 0.02) as head:
            # The index is written as memory, where a full disk would end the process without a word.
            assert (tmp_path / "index.bin").stat().st_blocks * 512 >= 8 * CLASSES
            advance(world, head, 0, 3)

    run_ranks(ranks, run)
    index = Index(np.fromfile(tmp_path / "index.bin", np.uint32))
    places = np.sort(index.places[index.checks != 0])
    # Each rank has taken room for some thousands of records at once.
    taken = np.sort(places // 4096)
    assert np.array_equal(np.unique(taken), np.arange(ranks))
    for rank in range(ranks):
        own = places[taken == rank]
        assert np.array_equal(own, rank * 4096 + np.arange(own.size))
    assert 0 < (tmp_path / "records.bin").stat().st_blocks * 512 < places.size * 192 + ranks * 8192


def made_first_format(folder: Path) -> None:
    """Make of a store what the first format would have: records in the order of classes."""
    header = Header.read(folder)
    assert header is not None
    index = Index(np.fromfile(folder / "index.bin", np.uint32))
    stand = np.fromfile(folder / "records.bin", np.uint8).reshape(-1, 192)
    records, written = np.zeros((CLASSES, 192), np.uint8), np.flatnonzero(index.checks)
    records[written] = stand[index.places[written]]
    records.tofile(folder / "records.bin")
    index.checks.tofile(folder / "checks.bin")
    # Another run was killed when it had written an index and not yet that it is there.
    (folder / "index.bin").write_bytes(b"an index")
    replace(header, format="class centers 1").write(folder)


def test_a_store_of_the_first_format_goes_on(tmp_path: Path) -> None:
    origin = trained(tmp_path)
    made_first_format(tmp_path)
    with SavedRows(tmp_path, origin, 4) as rows:
        arrays = {name: np.concatenate([*rows.rows(name)]) for name in rows.shapes}
    assert are_equal(arrays, reference(4))
    assert are_equal(restored(origin, 8, tmp_path, stop=11), reference(11))
    assert not (tmp_path / "checks.bin").exists()
    assert are_equal(restored(origin, 8, tmp_path, tmp_path), reference(8))
