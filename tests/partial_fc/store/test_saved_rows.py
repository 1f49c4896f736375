"""Rows of checkpoints are read from a store as a run that resumes would have them; damage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partial_fc.store.index import Index
from partial_fc.store.saved_rows import SavedRows
from partial_fc.store.undo import blocks
from runtime.errors import ConfigError, DataError
from tests.support.stored_head import (
    ADAM,
    LONE,
    MOMENTUM,
    are_equal,
    damage,
    reference,
    restored,
    stored,
    trained,
)

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


@pytest.mark.parametrize("name", ["store.json", "undo-00000004.rank-0000", LOG, "records.bin"])
def test_damage_is_one_line(tmp_path: Path, name: str) -> None:
    origin, where = trained(tmp_path), 60
    if name == "records.bin":
        # A row that is as it was at the checkpoint.
        index = Index(np.fromfile(tmp_path / "index.bin", np.uint32))
        found = blocks(tmp_path / LOG, 48)
        changed = {row for block in found for row in (*block.new, *block.classes)}
        where = int(192 * max(index.places[[*({*np.flatnonzero(index.checks)} - changed)]]))
    damage(tmp_path / name, where)
    update = 4 if "undo-00000004" in name else 8

    def refused() -> None:
        with pytest.raises(DataError, match="damaged|does not match its checksum") as raised:
            restored(origin, update, tmp_path)
        assert "\n" not in str(raised.value)
        with pytest.raises(DataError, match="damaged|does not match its checksum") as raised:
            with SavedRows(tmp_path, origin, update) as rows:
                rows.verify()
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
    os.truncate(tmp_path / "index.bin", 40)
    assert "index.bin has 40 bytes instead of 8000" in said()


def test_a_run_excludes_readers_and_other_runs(tmp_path: Path) -> None:
    origin = trained(tmp_path)
    in_use = pytest.raises(ConfigError, match="is in use by another run; give each run")
    with SavedRows(tmp_path, origin, 8), in_use, stored(LONE, tmp_path):
        pass
    with stored(LONE, tmp_path):
        with pytest.raises(DataError, match="is in use by a run,"), SavedRows(tmp_path, origin, 8):
            pass
        in_use = pytest.raises(ConfigError, match="is in use by another run; give each run")
        with in_use, stored(LONE, tmp_path):
            pass
