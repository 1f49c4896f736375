"""A store: back to each checkpoint, through kills, damage and a full disk; whose it is."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partial_fc.store.center_store import CenterStore
from partial_fc.store.header import STORE, Header
from partial_fc.store.index import Index
from partial_fc.store.saved_rows import SavedRows
from partial_fc.store.undo import UndoLog, blocks, logs
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from tests.support.stored_head import (
    CLASSES,
    EMBEDDING,
    INTERVAL,
    SavedStore,
    advance,
    are_equal,
    batch,
    create,
    joined,
    reference,
    resume,
)
from tests.support.thread_world import run_ranks

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 1), (1, 2), (2, 3)])
def test_it_returns_to_each_checkpoint_on_any_number_of_ranks(
    tmp_path: Path, before: int, after: int
) -> None:
    def train(world: Any) -> int:
        head = create(world, tmp_path)
        for update in range(0, 12, 4):
            state = head.export_state(update)
            advance(world, head, update, update + 4)
        advance(world, head, 12, 14)
        head.rows.close()
        number: int = state.values[STORE]
        return number

    number = run_ranks(before, train)[0]

    for update in (8, 4):
        saved = SavedStore(number, update)
        arrays = joined(run_ranks(after, partial(restored, folder=tmp_path, saved=saved)))
        assert are_equal(arrays, reference(update, ranks=before)), update


def restored(world: Any, folder: Path, saved: SavedStore) -> Any:
    head = create(world, folder)
    head.load_state(saved)
    arrays = head.rows.export()
    head.rows.close()
    return arrays


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_goes_on_from_a_checkpoint_again_and_again(tmp_path: Path, ranks: int) -> None:
    """Rows that are undone lose their places, and others get these."""

    def train(world: Any) -> int:
        head = create(world, tmp_path, ratio=0.1)
        for update in range(0, 12, 4):
            state = head.export_state(update)
            advance(world, head, update, update + 4)
        head.rows.close()
        number: int = state.values[STORE]
        return number

    def expected(world: Any) -> Any:
        head = create(world, None, ratio=0.1)
        advance(world, head, 0, 7)
        return head.rows.export()

    number = run_ranks(ranks, train)[0]
    reached = joined(run_ranks(ranks, expected))

    def again(world: Any) -> Any:
        head = create(world, tmp_path, ratio=0.1)
        head.load_state(SavedStore(number, 4))
        advance(world, head, 4, 7)
        arrays = head.rows.export()
        head.rows.close()
        return arrays

    lengths = set()
    for _ in range(3):
        assert are_equal(joined(run_ranks(ranks, again)), reached)
        lengths.add((tmp_path / "records.bin").stat().st_size)
    assert len(lengths) == 1


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


def test_a_checkpoint_that_is_gone_takes_its_log_with_it(tmp_path: Path) -> None:
    def run(world: Any) -> None:
        head = create(world, tmp_path)
        for update in range(0, 16, 4):
            state = head.export_state(update)
            advance(world, head, update, update + 4)
        assert state.when_saved is not None
        state.when_saved([8, 12])
        assert [update for update, _ in logs(tmp_path)] == [12, 8]
        head.rows.close()

    run_ranks(1, run)


@pytest.mark.waits
def test_a_kill_at_any_moment_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    check_kills(tmp_path, kills=int(os.environ.get("KILLS", "2")))


def check_kills(folder: Path, kills: int) -> None:
    store, progress = folder / "store", folder / "progress"
    # Kernels of their own: two processes that compile at the same time, as those of other tests do,
    # may round differently.
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "kernels")}

    def expected(updates: int) -> dict[str, Any]:
        file = folder / "reference.npz"
        command = [sys.executable, "-m", "tests.support.stored_head", "reference"]
        subprocess.run([*command, str(updates), str(file)], cwd=ROOT, env=environment, check=True)
        with np.load(file) as arrays:
            return dict(arrays)

    expected(1)
    delays = np.random.default_rng(3).uniform(0.0, 0.4, kills)
    for delay in delays:
        lines = count_lines(progress)
        command = [sys.executable, "-m", "tests.support.stored_head"]
        process = subprocess.Popen(
            [*command, str(store), str(progress), "100000"], cwd=ROOT, env=environment
        )
        try:
            while count_lines(progress) < lines + 2:
                assert process.poll() is None
                time.sleep(0.01)
            time.sleep(delay)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

        def back(world: Any) -> Any:
            head = create(world, store)
            update = resume(world, head, progress)
            arrays = head.rows.export()
            head.rows.close()
            return update, arrays

        update, arrays = run_ranks(1, back)[0]
        assert update >= INTERVAL * (lines + 2)
        assert are_equal(arrays, expected(update))


def count_lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def trained(folder: Path, updates: int = 8) -> int:
    """A store with checkpoints of every fourth update; returns its number."""

    def run(world: Any) -> int:
        head = create(world, folder)
        for update in range(0, updates + 1, 4):
            state = head.export_state(update)
            advance(world, head, update, update + 4)
        head.rows.close()
        number: int = state.values[STORE]
        return number

    return int(run_ranks(1, run)[0])


def opened(folder: Path, number: int, update: int) -> None:
    def run(world: Any) -> None:
        head = create(world, folder)
        try:
            head.load_state(SavedStore(number, update))
            head.rows.export()
        finally:
            head.rows.close()

    run_ranks(1, run)


def test_the_store_of_another_run_is_not_overwritten(tmp_path: Path) -> None:
    number = trained(tmp_path)

    def run(world: Any) -> None:
        head = create(world, tmp_path)
        try:
            advance(world, head, 0, 1)
        finally:
            head.rows.close()

    with pytest.raises(ConfigError, match="holds the centers of another run, at update 8; give"):
        run_ranks(1, run)
    with pytest.raises(DataError, match="is not the store of this checkpoint"):
        opened(tmp_path, number + 1, 8)
    with pytest.raises(DataError, match="does not reach back to update 6"):
        opened(tmp_path, number, 6)
    opened(tmp_path, number, 8)


def test_a_store_that_no_checkpoint_needs_is_made_anew(tmp_path: Path) -> None:
    def run(world: Any) -> Any:
        head = create(world, tmp_path)
        head.export_state(0)
        advance(world, head, 0, 3)
        arrays = head.rows.export()
        head.rows.close()
        return arrays

    first, second = run_ranks(1, run)[0], run_ranks(1, run)[0]
    assert are_equal(first, second)


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    def run(world: Any) -> None:
        head = create(world, tmp_path)
        try:
            with pytest.raises(ConfigError, match="is in use by another run; give each run"):
                create(world, tmp_path)
        finally:
            head.rows.close()

    run_ranks(1, run)


def flip(path: Path, where: int) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["store.json", "undo-00000004.rank-0000", "records.bin"])
def test_damage_is_one_line(tmp_path: Path, name: str) -> None:
    number = trained(tmp_path)
    where = 60 if name != "records.bin" else unlogged_place(tmp_path) * 192
    flip(tmp_path / name, where)
    with pytest.raises(DataError, match="damaged|does not match its checksum") as raised:
        opened(tmp_path, number, 4 if name.startswith("undo") else 8)
    assert "\n" not in str(raised.value)


def test_records_that_are_cut_off_are_one_line(tmp_path: Path) -> None:
    number = trained(tmp_path)
    os.truncate(tmp_path / "records.bin", unlogged_place(tmp_path) * 192 + 100)
    with pytest.raises(DataError, match="does not match its checksum") as raised:
        opened(tmp_path, number, 8)
    assert "\n" not in str(raised.value)


def unlogged_place(folder: Path) -> int:
    """The place of a record that the last checkpoint's log does not put back."""
    index = Index(np.fromfile(folder / "index.bin", np.uint32))
    written = {int(row) for row in np.flatnonzero(index.checks)}
    return int(max(index.places[[*(written - logged(folder))]]))


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
    number = trained(tmp_path)
    made_first_format(tmp_path)
    with SavedRows(tmp_path, number, 4) as rows:
        arrays = {name: np.concatenate([*rows.rows(name)]) for name in rows.shapes}
    assert are_equal(arrays, reference(4))

    def run(world: Any) -> Any:
        head = create(world, tmp_path)
        head.load_state(SavedStore(number, 8))
        advance(world, head, 8, 11)
        arrays = head.rows.export()
        head.rows.close()
        return arrays

    assert are_equal(run_ranks(1, run)[0], reference(11))
    assert not (tmp_path / "checks.bin").exists()
    again = partial(restored, folder=tmp_path, saved=SavedStore(number, 8))
    assert are_equal(joined(run_ranks(2, again)), reference(8))


def logged(folder: Path) -> set[int]:
    found: set[int] = set()
    for block in blocks(folder / "undo-00000008.rank-0000", 48):
        found |= {*block.new.tolist(), *block.classes.tolist()}
    return found


def test_a_log_that_a_kill_has_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    number = trained(tmp_path)
    with (tmp_path / "undo-00000008.rank-0000").open("ab") as file:
        file.write(b"PFCUNDO1 and no more")
    opened(tmp_path, number, 8)


def test_a_full_disk_is_one_line_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = trained(tmp_path)

    def run(world: Any) -> Any:
        head = create(world, tmp_path)
        head.load_state(SavedStore(number, 8))
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

    again = partial(restored, folder=tmp_path, saved=SavedStore(number, 8))
    assert are_equal(run_ranks(1, again)[0], reference(8))


def test_numbers_that_are_not_finite_get_no_checkpoint(tmp_path: Path) -> None:
    def run(world: Any) -> None:
        head = create(world, tmp_path)
        head.export_state(0)
        features, labels = batch(world, 0)
        head.step(features * float("nan"), labels, 0, 0.1)
        try:
            with pytest.raises(DataError, match="not finite"):
                head.export_state(1)
        finally:
            head.rows.close()

    run_ranks(1, run)


def test_a_checkpoint_of_a_store_needs_its_folder(tmp_path: Path) -> None:
    number = trained(tmp_path)

    def run(world: Any) -> None:
        create(world, None).load_state(SavedStore(number, 8))

    with pytest.raises(DataError, match="are in the store of its run; give its folder with"):
        run_ranks(1, run)


def began(folder: Path, run: Path, *, killed: bool) -> Any:
    """Begin a run, which ends without a checkpoint if it is killed; returns the centers."""

    def rank(world: Any) -> Any:
        head = create(world, folder)
        try:
            head.begin(run)
            head.export_state(0)
            advance(world, head, 0, 3)
            # The checkpoint is begun; only ``when_saved`` would say that it exists.
            state = head.export_state(3)
            arrays = head.rows.export()
            if not killed:
                assert state.when_saved is not None
                state.when_saved([3])
        finally:
            head.rows.close()
        return arrays

    return joined(run_ranks(2, rank))


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    store, run = tmp_path / "store", tmp_path / "run"
    first = began(store, run, killed=True)
    # Nobody else may: the checkpoint may exist.
    with pytest.raises(ConfigError, match="holds the centers of another run, at update 3; give"):
        began(store, tmp_path / "another", killed=True)
    assert are_equal(began(store, run, killed=False), first)
    with pytest.raises(ConfigError, match="holds the centers of another run"):
        began(store, run, killed=True)


def test_a_kill_while_it_is_restored_can_be_undone_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = trained(tmp_path, updates=12)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CenterStore, "_begin_log", killed)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path, number, 8)
    assert [update for update, _ in logs(tmp_path)] == [8, 4, 0]
    again = partial(restored, folder=tmp_path, saved=SavedStore(number, 8))
    assert are_equal(run_ranks(1, again)[0], reference(8))


def test_centers_that_are_read_are_those_of_a_new_run(tmp_path: Path) -> None:
    (tmp_path / "centers").mkdir()
    values = np.full((CLASSES, EMBEDDING), 0.75, np.float32)
    mx.nd.save(str(tmp_path / "centers" / "0_centers.param"), mx.nd.array(values))

    def run(world: Any) -> None:
        head = create(world, tmp_path / "store", pretrained_centers=str(tmp_path / "centers"))
        head.begin(tmp_path)
        assert np.array_equal(head.rows.export()["centers"], values)
        assert not head.rows.export()["momenta"].any()
        head.rows.close()

    run_ranks(1, run)
