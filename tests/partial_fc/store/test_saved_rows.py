"""Rows of checkpoints are read from a store as a run that resumes would have them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partial_fc.store.header import Origin
from partial_fc.store.index import Index
from partial_fc.store.saved_rows import SavedRows
from partial_fc.store.undo import blocks
from runtime.errors import ConfigError, DataError
from tests.support.stored_head import ADAM, MOMENTUM, advance, are_equal, create, reference
from tests.support.thread_world import run_ranks

UPDATES = (0, 4, 8)


def train(folder: Path, ranks: int = 1, rule: Any = MOMENTUM) -> Origin:
    """A store with three checkpoints and updates after the last; returns its origin."""

    def run(world: Any) -> Origin:
        head = create(world, folder, rule)
        for update in UPDATES:
            state = head.export_state(update)
            advance(world, head, update, update + 4)
        head.rows.close()
        return Origin(*state.values.values())

    return run_ranks(ranks, run)[0]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("rule", [MOMENTUM, ADAM], ids=["sgd", "adam"])
def test_the_rows_are_those_of_each_checkpoint(
    tmp_path: Path, rule: Any, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = train(tmp_path, ranks, rule)
    monkeypatch.setattr("partial_fc.store.saved_rows._ROWS", 137)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for update in UPDATES:
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


def test_a_damaged_record_is_one_line(tmp_path: Path) -> None:
    origin = train(tmp_path)
    log = tmp_path / "undo-00000008.rank-0000"
    changed = {row for block in blocks(log, 48) for row in (*block.new, *block.classes)}
    index = Index(np.fromfile(tmp_path / "index.bin", np.uint32))
    kept = max({*np.flatnonzero(index.checks)} - changed)
    # A row that is as it was at the checkpoint, and one that has changed since then.
    for path, where in ((tmp_path / "records.bin", 192 * index.places[kept]), (log, -1)):
        content = bytearray(path.read_bytes())
        content[where] ^= 1
        intact = path.read_bytes()
        path.write_bytes(content)
        with SavedRows(tmp_path, origin, 8) as rows:
            damaged = pytest.raises(DataError, match="damaged|does not match its checksum")
            with damaged as raised:
                rows.verify()
            assert "\n" not in str(raised.value) and str(tmp_path) in str(raised.value)
        path.write_bytes(intact)


def test_what_is_wrong_with_a_store_is_one_line(tmp_path: Path) -> None:
    origin = train(tmp_path)

    def said(folder: Path = tmp_path, origin: Origin = origin, update: int = 8) -> str:
        with pytest.raises(DataError) as raised, SavedRows(folder, origin, update):
            pass
        assert "\n" not in str(raised.value)
        return str(raised.value)

    assert "holds no class centers; give the folder" in said(tmp_path / "nowhere")
    assert "is not the store of this checkpoint" in said(origin=origin._replace(number=17))
    assert "does not reach back to update 6" in said(update=6)
    os.truncate(tmp_path / "index.bin", 40)
    assert "index.bin has 40 bytes instead of 8000" in said()


def test_a_run_and_a_reader_exclude_each_other(tmp_path: Path) -> None:
    origin = train(tmp_path)

    def run(world: Any) -> None:
        in_use = pytest.raises(ConfigError, match="is in use by another run")
        with SavedRows(tmp_path, origin, 8), in_use:
            create(world, tmp_path)
        head = create(world, tmp_path)
        try:
            with (
                pytest.raises(DataError, match="is in use by a run,"),
                SavedRows(tmp_path, origin, 8),
            ):
                pass
        finally:
            head.rows.close()

    run_ranks(1, run)
