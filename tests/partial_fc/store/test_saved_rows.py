"""Rows of checkpoints are read from a store as a run that resumes would have them; damage."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partial_fc.store.header import Header
from partial_fc.store.index import Index, Room
from partial_fc.store.saved_rows import SavedRows
from partial_fc.store.undo import blocks
from runtime.errors import ConfigError, DataError
from tests.support.stored_head import (
    ADAM,
    CLASSES,
    LONE,
    MOMENTUM,
    advance,
    are_equal,
    damage,
    reference,
    restored,
    stored,
    trained,
)
from tests.support.thread_world import run_ranks

LOG = "undo-00000008.rank-0000"


@pytest.mark.parametrize(("rule", "ranks"), [(MOMENTUM, 2), (ADAM, 1)], ids=["sgd", "adam"])
def test_the_rows_are_those_of_each_checkpoint(
    tmp_path: Path, rule: Any, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = trained(*[tmp_path] * ranks, rule=rule)
    monkeypatch.setattr("partial_fc.store.saved_rows._ROWS", 137)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for update in (0, 4, 8):
        with SavedRows(tmp_path, origin, update) as rows:
            arrays = {name: np.concatenate([*rows.rows(name)]) for name in rows.shapes}
            written = rows.verify()
        expected = reference(update, rule, ranks)
        assert are_equal(arrays, expected), update
        for name, (dtype, shape) in rows.shapes.items():
            assert arrays[name].dtype == dtype and arrays[name].shape[1:] == shape
        # A row that an update has changed has a momentum.
        changed = np.any(expected["momenta" if rule is MOMENTUM else "first_moments"], axis=1)
        assert written == np.count_nonzero(changed)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.parametrize("name", ["store.json", LOG, "records.bin"])
def test_damage_is_one_line(tmp_path: Path, name: str) -> None:
    origin, where = trained(tmp_path), 60
    if name == "records.bin":
        # A row that is as it was at the checkpoint.
        index = Index(np.fromfile(tmp_path / "index.bin", np.uint32))
        found = blocks(tmp_path / LOG, 48)
        changed = {row for block in found for row in (*block.new, *block.classes)}
        where = int(192 * max(index.places[[*({*np.flatnonzero(index.checks)} - changed)]]))
    damage(tmp_path / name, where)

    def verify() -> None:
        with SavedRows(tmp_path, origin, 8) as rows:
            rows.verify()

    def refused() -> None:
        for read in (lambda: restored(origin, 8, tmp_path), verify):
            with pytest.raises(DataError, match="damaged|does not match its checksum") as raised:
                read()
            assert "\n" not in str(raised.value) and str(tmp_path) in str(raised.value)

    refused()
    if name == "records.bin":
        os.truncate(tmp_path / name, where + 100)
        refused()


def test_what_is_wrong_with_a_store_is_one_line(tmp_path: Path) -> None:
    origin = trained(tmp_path)

    def said(folder: Path = tmp_path, origin: Any = origin, update: int = 8) -> str:
        with pytest.raises(DataError) as raised, SavedRows(folder, origin, update):
            pass
        assert "\n" not in str(raised.value)
        return str(raised.value)

    assert "holds no class centers; give the folder" in said(tmp_path / "nowhere")
    assert "is not the store of this checkpoint" in said(origin=origin._replace(number=17))
    assert "does not reach back to update 6" in said(update=6)
    header = Header.read(tmp_path)
    assert header is not None
    replace(header, format="class centers 1").write(tmp_path)
    assert "store.json is damaged, or of another version" in said()
    header.write(tmp_path)
    os.truncate(tmp_path / "index.bin", 40)
    assert "index.bin has 40 bytes instead of 8000" in said()


def test_a_run_excludes_readers_and_other_runs(tmp_path: Path) -> None:
    origin = trained(tmp_path)

    def train() -> None:
        with stored(LONE, tmp_path):
            pass

    in_use = "is in use by another run; give each run"
    for use in (lambda: stored(LONE, tmp_path), lambda: SavedRows(tmp_path, origin, 8)):
        with use(), pytest.raises(ConfigError, match=in_use):
            train()
    with stored(LONE, tmp_path), pytest.raises(DataError, match="is in use by a run,"):
        SavedRows(tmp_path, origin, 8)


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
    monkeypatch.setattr("partial_fc.store.index._PLACES_AT_ONCE", 3)
    rooms = [Room(opened(tmp_path / "records"), RECORD) for _ in range(4)]

    def take(room: Room) -> np.ndarray:
        return np.concatenate([room.take(count % 9) for count in range(400)])

    with ThreadPoolExecutor(4) as threads:
        places = np.concatenate([*threads.map(take, rooms)])
    assert np.unique(places).size == places.size == 4 * sum(count % 9 for count in range(400))
    assert places.max() < (tmp_path / "records").stat().st_size // RECORD


def test_records_stand_side_by_side(tmp_path: Path) -> None:
    ranks = 3

    def run(world: Any) -> None:
        with stored(world, tmp_path, MOMENTUM, 0.02) as head:
            # It is written as memory, where a full disk would end the process without a word.
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
