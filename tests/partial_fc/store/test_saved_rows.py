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
from tests.support import stored_head as runs
from tests.support.thread_world import run_ranks

LOG = "undo-00000008.rank-0000"


def index_of(folder: Path) -> Index:
    return Index(np.fromfile(folder / "index.bin", np.uint32))


@pytest.mark.parametrize(("rule", "ranks"), [(runs.MOMENTUM, 2), (runs.ADAM, 1)])
def test_the_rows_are_those_of_each_checkpoint(tmp_path, rule, ranks, monkeypatch) -> None:
    origin = runs.trained(*[tmp_path] * ranks, rule=rule)
    monkeypatch.setattr("partial_fc.store.saved_rows._ROWS", 137)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for update in (0, 4, 8):
        with SavedRows(tmp_path, origin, update) as rows:
            arrays = {name: np.concatenate([*rows.rows(name)]) for name in rows.shapes}
            written = rows.verify()
        expected = runs.reference(update, rule, ranks)
        assert runs.are_equal(arrays, expected), update
        for name, (dtype, shape) in rows.shapes.items():
            assert arrays[name].dtype == dtype and arrays[name].shape[1:] == shape
        # A row that an update has changed has a momentum.
        changed = np.any(expected["momenta" if rule is runs.MOMENTUM else "first_moments"], axis=1)
        assert written == np.count_nonzero(changed)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_damage_is_one_line(tmp_path: Path) -> None:
    origin, damaged = runs.trained(tmp_path), "damaged|does not match its checksum"
    # A row that is as it was at the checkpoint.
    index = index_of(tmp_path)
    found = blocks(tmp_path / LOG, 48)
    changed = {row for block in found for row in (*block.new, *block.classes)}
    last = int(192 * max(index.places[[*({*np.flatnonzero(index.checks)} - changed)]]))
    # The seed stays a number: the checksum alone tells.
    seed = (tmp_path / "store.json").read_bytes().index(b'"seed": ') + len('"seed": ')
    places = (("store.json", 60), ("store.json", seed), (LOG, 60), ("records.bin", last))
    for name, where in places:
        runs.damage(tmp_path / name, where)
        runs.refused(damaged, origin, 8, tmp_path)
        runs.damage(tmp_path / name, where)
    os.truncate(tmp_path / "records.bin", last + 100)
    runs.refused(damaged, origin, 8, tmp_path)


def test_what_is_wrong_with_a_store_is_one_line(tmp_path: Path) -> None:
    origin, nowhere = runs.trained(tmp_path), tmp_path / "nowhere"
    with pytest.raises(DataError, match="holds no class centers; give the folder"):
        SavedRows(nowhere, origin, 8)
    other = "is not the store of this checkpoint"
    runs.refused(other, origin._replace(number=17), 8, tmp_path)
    with runs.stored(runs.LONE, nowhere):
        pass
    runs.refused(other, origin, 8, nowhere)
    runs.refused("does not reach back to update 6", origin, 6, tmp_path)
    header = Header.read(tmp_path)
    assert header is not None
    replace(header, format="class centers 1").write(tmp_path)
    runs.refused("store.json is damaged, or of another version", origin, 8, tmp_path)
    header.write(tmp_path)
    os.truncate(tmp_path / "index.bin", 40)
    runs.refused("index.bin has 40 bytes instead of 8000", origin, 8, tmp_path)


def test_a_run_excludes_readers_and_other_runs(tmp_path: Path) -> None:
    origin = runs.trained(tmp_path)
    in_use = pytest.raises(ConfigError, match="is in use by another run; give each run")
    for use in (lambda: runs.stored(runs.LONE, tmp_path), lambda: SavedRows(tmp_path, origin, 8)):
        with use(), in_use, runs.stored(runs.LONE, tmp_path):
            pass
    with runs.stored(runs.LONE, tmp_path), pytest.raises(DataError, match="is in use by a run,"):
        SavedRows(tmp_path, origin, 8)


def test_the_end_is_behind_the_last_record(monkeypatch: pytest.MonkeyPatch) -> None:
    # Checksums and places; a class without a record may have any place.
    index = Index(np.array([[7, 4], [0, 90], [1, 0], [2, 6], [0, 0]], np.uint32))
    for at_once in (2, 3, 100):
        monkeypatch.setattr("partial_fc.store.index._AT_ONCE", at_once)
        bounds = ((0, 5), (0, 3), (2, 3), (4, 5), (1, 2))
        assert [index.end(*some) for some in bounds] == [7, 5, 1, 0, 0]


def test_places_follow_each_other_and_those_of_ranks_differ(tmp_path, monkeypatch) -> None:
    path, record = tmp_path / "records", 64

    def room() -> Room:
        return Room(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), record)

    one = room()
    assert one.take(0).size == path.stat().st_size == 0
    taken = [one.take(count) for count in (3, 0, 5000, 7)]
    assert np.array_equal(np.concatenate(taken), np.arange(5010))
    # The last record was being written by another run, or is of a file that was cut off.
    os.truncate(path, 10 * record + 1)
    assert np.array_equal(room().take(2), [11, 12])

    def take(own: Room) -> np.ndarray:
        return np.concatenate([own.take(count % 9) for count in range(400)])

    monkeypatch.setattr("partial_fc.store.index._PLACES_AT_ONCE", 3)
    with ThreadPoolExecutor(4) as threads:
        places = np.concatenate([*threads.map(take, [room() for _ in range(4)])])
    assert np.unique(places).size == places.size == 4 * sum(count % 9 for count in range(400))
    assert places.max() < path.stat().st_size // record


def test_records_stand_side_by_side(tmp_path: Path) -> None:
    ranks = 3

    def run(world: Any) -> None:
        with runs.stored(world, tmp_path, runs.MOMENTUM, 0.02) as head:
            # It is written as memory, where a full disk would end the process without a word.
            assert (tmp_path / "index.bin").stat().st_blocks * 512 >= 8 * runs.CLASSES
            runs.advance(world, head, 0, 3)

    run_ranks(ranks, run)
    index = index_of(tmp_path)
    places = np.sort(index.places[index.checks != 0])
    # Each rank has taken room for some thousands of records at once.
    taken, counts = np.unique(places // 4096, return_counts=True)
    assert np.array_equal(taken, np.arange(ranks))
    own = [rank * 4096 + np.arange(count) for rank, count in enumerate(counts)]
    assert np.array_equal(places, np.concatenate(own))
    assert 0 < (tmp_path / "records.bin").stat().st_blocks * 512 < places.size * 192 + ranks * 8192
