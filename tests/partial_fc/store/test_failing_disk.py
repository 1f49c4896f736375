"""Damage and a full disk: one line, and nothing is lost."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partial_fc.store.index import Index
from partial_fc.store.undo import UndoLog, blocks
from runtime.errors import DataError
from tests.support.stored_head import (
    SavedStore,
    advance,
    are_equal,
    create,
    opened,
    reference,
    restored,
    trained,
)
from tests.support.thread_world import run_ranks


def flip(path: Path, where: int) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["store.json", "undo-00000004.rank-0000", "records.bin"])
def test_damage_is_one_line(tmp_path: Path, name: str) -> None:
    origin = trained(tmp_path)
    where = 60 if name != "records.bin" else unlogged_place(tmp_path) * 192
    flip(tmp_path / name, where)
    with pytest.raises(DataError, match="damaged|does not match its checksum") as raised:
        opened(tmp_path, origin, 4 if name.startswith("undo") else 8)
    assert "\n" not in str(raised.value)


def test_records_that_are_cut_off_are_one_line(tmp_path: Path) -> None:
    origin = trained(tmp_path)
    os.truncate(tmp_path / "records.bin", unlogged_place(tmp_path) * 192 + 100)
    with pytest.raises(DataError, match="does not match its checksum") as raised:
        opened(tmp_path, origin, 8)
    assert "\n" not in str(raised.value)


def unlogged_place(folder: Path) -> int:
    """The place of a record that the last checkpoint's log does not put back."""
    index = Index(np.fromfile(folder / "index.bin", np.uint32))
    written = {int(row) for row in np.flatnonzero(index.checks)}
    return int(max(index.places[[*(written - logged(folder))]]))


def logged(folder: Path) -> set[int]:
    found: set[int] = set()
    for block in blocks(folder / "undo-00000008.rank-0000", 48):
        found |= {*block.new.tolist(), *block.classes.tolist()}
    return found


def test_a_full_disk_is_one_line_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = trained(tmp_path)

    def run(world: Any) -> Any:
        head = create(world, tmp_path)
        head.load_state(SavedStore(origin, 8))
        no_room = pytest.raises(DataError, match="No space left on device.*start again")
        with monkeypatch.context() as patch, no_room as said:

            def full(*_: Any) -> int:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            patch.setattr(UndoLog, "append", full)
            advance(world, head, 8, 12)
            head.export_state(12)
        assert "\n" not in str(said.value)
        head.rows.close()

    run_ranks(1, run)

    again = partial(restored, folder=tmp_path, saved=SavedStore(origin, 8))
    assert are_equal(run_ranks(1, again)[0], reference(8))
