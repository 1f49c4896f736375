"""Places at the end of a file that several ranks extend at the same time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from partial_fc.store.room import Room

RECORD = 64


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def test_places_follow_each_other(tmp_path: Path) -> None:
    room = Room(opened(tmp_path / "records"), RECORD)
    assert room.take(0).size == 0
    assert (tmp_path / "records").stat().st_size == 0
    taken = [room.take(count) for count in (3, 0, 5000, 7)]
    assert np.array_equal(np.concatenate(taken), np.arange(5010))


def test_what_another_run_has_left_is_not_given_again(tmp_path: Path) -> None:
    file = opened(tmp_path / "records")
    # The last record was being written, or is of a file that was cut off.
    os.ftruncate(file, 10 * RECORD + 1)
    assert np.array_equal(Room(file, RECORD).take(2), [11, 12])


def test_ranks_get_other_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partial_fc.store.room._AT_ONCE", 3)
    rooms = [Room(opened(tmp_path / "records"), RECORD) for _ in range(4)]
    taken: list[list[np.ndarray]] = [[] for _ in rooms]

    def take(rank: int) -> None:
        for count in range(400):
            taken[rank].append(rooms[rank].take(count % 9))

    threads = [threading.Thread(target=take, args=(rank,)) for rank in range(len(rooms))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    places = np.concatenate([piece for pieces in taken for piece in pieces])
    assert places.size == 4 * sum(count % 9 for count in range(400))
    assert np.unique(places).size == places.size
    assert places.max() < (tmp_path / "records").stat().st_size // RECORD
