"""Undo logs that are damaged: what they have lost is noticed, and what a kill cuts off is not."""

import shutil
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest

from partial_fc.options import HeadOptions
from partial_fc.shard import Shard
from partial_fc.store import undo
from partial_fc.store.center_store import CenterStore
from partial_fc.store.records import Part, empty, layout_of
from partial_fc.store.saved_rows import SavedRows
from runtime.errors import ConfigError, DataError
from tests.support import stored_head as runs

LAYOUT = layout_of(3, {})
CLASSES, UPDATE = 4, 8
LOG = f"undo-{UPDATE:08d}.rank-0000"
HEAD, RECORD = 32, 64


def opened(folder: Path) -> Any:
    options, shard = HeadOptions(center_store=str(folder)), Shard(0, 1, CLASSES)
    return closing(CenterStore(options, shard, 3, {}, runs.LONE, seed=1))


def write(store: CenterStore, classes: list[int], value: float) -> None:
    rows = np.array(classes, np.int64)
    arrays = empty(LAYOUT, rows.size)
    arrays["centers"][:] = value
    store.write(Part(arrays, rows, np.arange(rows.size)))
    store.wait()


def content(store: CenterStore) -> bytes:
    arrays, rows = empty(LAYOUT, CLASSES), np.arange(CLASSES)
    store.wait(store.read(Part(arrays, rows, rows)))
    return arrays["centers"].tobytes()


@pytest.fixture
def killed(tmp_path: Path) -> Any:
    """A store as a killed process leaves it: rows by update, and its newest undo log.

    The log has two blocks: a new row and a record, and a new row. Of a third there is a part.
    """
    folder, rows = tmp_path / "store", {}
    with opened(folder) as store:
        store.begin("")
        rows[0] = content(store)
        store.checkpoint(0)
        write(store, [0, 1], 1.0)
        rows[UPDATE] = content(store)
        origin = store.checkpoint(UPDATE)
        write(store, [0, 2], 2.0)
        write(store, [3], 3.0)
    log = (folder / LOG).read_bytes()
    assert len(log) == HEAD + (HEAD + 8 + 12 + RECORD) + (HEAD + 8)
    log += log[HEAD : 2 * HEAD + 10]
    return SimpleNamespace(folder=folder, origin=origin, rows=rows, log=log)


@contextmanager
def one_line() -> Iterator[None]:
    try:
        yield
    except DataError as error:
        assert "\n" not in str(error)


def outcome(killed: Any, log: bytes, update: int = UPDATE) -> tuple[Optional[bytes], bool]:
    """The rows to which a run returns, None for an error; and whether they are said to be intact.

    An error is one line.
    """
    scratch = killed.folder.with_name("copy")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(killed.folder, scratch)
    (scratch / LOG).write_bytes(log)
    found, is_intact = None, False
    with one_line(), SavedRows(scratch, killed.origin, update) as rows:
        rows.verify()
        is_intact = True
    with opened(scratch) as store, one_line():
        store.restore(runs.saved(killed.origin, update))
        found = content(store)
    return found, is_intact


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.thorough)])
def test_every_flipped_bit_is_detected_or_changes_nothing(killed: Any, step: int) -> None:
    expected = killed.rows[UPDATE]
    harmless: set[int] = set()
    assert outcome(killed, killed.log) == (expected, True)
    # Of each byte a bit, or all.
    for bit in range(0, 8 * len(killed.log), step):
        log = bytearray(killed.log)
        log[bit // 8] ^= 1 << bit % 8
        found, is_intact = outcome(killed, bytes(log))
        assert found in (None, expected) and is_intact == (found is not None), bit
        harmless |= {bit // 8} if is_intact else set()
    # What a kill has cut off, behind its head.
    cut_off = {*range(len(killed.log) - 10, len(killed.log))}
    assert harmless == cut_off if step == 1 else harmless <= cut_off


def test_a_log_that_has_lost_its_end_or_a_size_is_detected(killed: Any) -> None:
    """A kill cuts off a block whose rows have not changed. These have."""
    whole = len(killed.log) - HEAD - 10
    for size in range(len(killed.log)):
        expected = (None, False) if size < whole else (killed.rows[UPDATE], True)
        assert outcome(killed, killed.log[:size]) == expected, size
    # No memory is taken for more than the file holds.
    for counts in ((2**38, 0), (0, 2**63)):
        head = undo._head(undo._BLOCK, 0, *counts)
        log = killed.log[:HEAD] + head + killed.log[2 * HEAD :]
        assert outcome(killed, log) == (None, False)
    # The newer records of a row are verified, too.
    assert outcome(killed, killed.log, 0) == (killed.rows[0], True)
    log = bytearray(killed.log)
    log[2 * HEAD + 8 + 12] ^= 1
    assert outcome(killed, bytes(log), 0) == (None, False)


@pytest.mark.parametrize("row", [-1, CLASSES, 2**40])
def test_a_log_of_other_classes_is_refused(killed: Any, row: int) -> None:
    listed = struct.pack("<q", row)
    block = undo._head(undo._BLOCK, zlib.crc32(listed), 1, 0) + listed
    (killed.folder / LOG).write_bytes(killed.log[: -HEAD - 10] + block)
    with pytest.raises(DataError, match=f"{LOG} is of other classes; use"):
        SavedRows(killed.folder, killed.origin, UPDATE)
    with opened(killed.folder) as store, pytest.raises(DataError, match="other classes"):
        store.restore(runs.saved(killed.origin, UPDATE))


def test_a_damaged_log_of_an_old_checkpoint_spoils_no_newer_one(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.begin("")
        write(store, [0, 1], 1.0)
        store.checkpoint(4)
        write(store, [0, 2], 2.0)
        write(store, [1], 3.0)
        origin, expected = store.checkpoint(UPDATE), content(store)
    old = tmp_path / "undo-00000004.rank-0000"
    log = old.read_bytes()
    runs.damage(old, -1)
    for damaged in (old.read_bytes(), log[: -HEAD - 8 - 12 - RECORD]):
        old.write_bytes(damaged)
        with opened(tmp_path) as store, pytest.raises(DataError, match="damaged|not lead back"):
            store.restore(runs.saved(origin, 4))
        with opened(tmp_path) as store:
            store.restore(runs.saved(origin, UPDATE))
            assert content(store) == expected


@pytest.mark.parametrize(("ranks", "removed"), [(1, 0), (3, 1)])
def test_a_log_that_was_removed_is_noticed(tmp_path, ranks, removed) -> None:
    origin = runs.trained(tmp_path, tmp_path)
    (tmp_path / f"undo-{UPDATE:08d}.rank-{removed:04d}").unlink()
    runs.refused("a log was cut off or removed", origin, UPDATE, *[tmp_path] * ranks)


def test_a_new_store_has_none_of_the_logs_of_an_earlier_one(killed: Any) -> None:
    (killed.folder / "store.json").unlink()
    with opened(killed.folder):
        assert not undo.logs(killed.folder)


def test_stores_of_two_hosts(tmp_path: Path) -> None:
    """Of ranks in turn: each host's classes have those of the other between them."""
    folders = [tmp_path / str(rank % 2) for rank in range(4)]
    origin = runs.trained(*folders)
    assert runs.are_equal(runs.restored(origin, UPDATE, *folders), runs.reference(UPDATE, ranks=4))
    with SavedRows(folders[0], origin, UPDATE) as rows:
        assert rows.verify()
    for folder, there in zip(folders, ("0 to 749", "250 to 999")):
        other = pytest.raises(ConfigError, match=f"classes {there} of 1,000 .* not 1,000")
        with other, runs.stored(runs.LONE, folder):
            pass
    # Copies: each has more classes than its ranks.
    first, second = tmp_path / "first", tmp_path / "second"
    origin = runs.trained(first)
    shutil.copytree(first, second)
    assert runs.are_equal(runs.restored(origin, UPDATE, first, second), runs.reference(UPDATE))


def test_a_kill_while_other_ranks_begin_their_logs(tmp_path, monkeypatch) -> None:
    origin = runs.trained(tmp_path, tmp_path)

    def begun(folder: Path, update: int, rank: int, *given: Any) -> None:
        if rank == 0:
            undo.UndoLog(folder, update, rank, *given).close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("partial_fc.store.center_store.UndoLog", begun)
        runs.restored(origin, UPDATE, *[tmp_path] * 3)
    found = runs.restored(origin, UPDATE, tmp_path, tmp_path)
    assert runs.are_equal(found, runs.reference(UPDATE, ranks=2))
