"""Where the records of a store are, also of one of the first format."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partial_fc.store.header import Header
from partial_fc.store.index import Index
from partial_fc.store.saved_rows import SavedRows
from tests.support.stored_head import (
    CLASSES,
    SavedStore,
    advance,
    are_equal,
    create,
    joined,
    reference,
    restored,
    trained,
)
from tests.support.thread_world import run_ranks


def test_the_index_has_its_room_before_it_is_written(tmp_path: Path) -> None:
    """It is written as memory, where a full disk would end the process without a word."""
    run_ranks(1, lambda world: create(world, tmp_path).rows.close())
    assert (tmp_path / "index.bin").stat().st_blocks * 512 >= 8 * CLASSES
    assert (tmp_path / "records.bin").stat().st_size == 0


@pytest.mark.parametrize("ranks", [1, 3])
def test_records_stand_side_by_side(tmp_path: Path, ranks: int) -> None:
    def run(world: Any) -> None:
        head = create(world, tmp_path, ratio=0.02)
        advance(world, head, 0, 3)
        head.rows.close()

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
    records = np.zeros((CLASSES, 192), np.uint8)
    written = np.flatnonzero(index.checks)
    records[written] = stand[index.places[written]]
    records.tofile(folder / "records.bin")
    index.checks.tofile(folder / "checks.bin")
    (folder / "index.bin").unlink()
    replace(header, format="class centers 1").write(folder)


def test_a_store_of_the_first_format_goes_on(tmp_path: Path) -> None:
    origin = trained(tmp_path)
    made_first_format(tmp_path)
    # Another run was killed when it had written an index and not yet that it is there.
    (tmp_path / "index.bin").write_bytes(b"an index")
    with SavedRows(tmp_path, origin, 4) as rows:
        arrays = {name: np.concatenate([*rows.rows(name)]) for name in rows.shapes}
    assert are_equal(arrays, reference(4))

    def run(world: Any) -> Any:
        head = create(world, tmp_path)
        head.load_state(SavedStore(origin, 8))
        advance(world, head, 8, 11)
        arrays = head.rows.export()
        head.rows.close()
        return arrays

    assert are_equal(run_ranks(1, run)[0], reference(11))
    assert not (tmp_path / "checks.bin").exists()
    again = partial(restored, folder=tmp_path, saved=SavedStore(origin, 8))
    assert are_equal(joined(run_ranks(2, again)), reference(8))
