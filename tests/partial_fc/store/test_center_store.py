"""A store: back to each checkpoint, also through kills and a full disk; and no other file."""

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from partial_fc.rows.stored import StoredRows
from partial_fc.store import records
from partial_fc.store.header import STORE, Header, Origin
from partial_fc.store.records import Index, Records, layout_of
from partial_fc.store.saved_rows import SavedRows
from partial_fc.store.undo import UndoLog, blocks, logs
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from tests.support import stored_head as runs
from tests.support.thread_world import run_ranks


@pytest.mark.parametrize(("ranks", "ahead", "rule"), [
    *((1, True, runs.MOMENTUM), (2, True, runs.ADAM)),
    *((1, False, runs.ADAM), (2, False, runs.MOMENTUM)),
])
def test_the_numbers_are_those_of_rows_in_memory(tmp_path, rule, ranks, ahead) -> None:
    def run(world: Any, store: Any, ahead: bool) -> Any:
        head = runs.create(world, store, rule)
        losses, gradients = zip(*runs.advance(world, head, 0, 12, ahead=ahead))
        assert isinstance(head.rows, StoredRows) == (store is not None)
        arrays = {**head.rows.export(), "losses": losses, "gradients": np.array(gradients)}
        head.rows.close()
        return arrays

    in_store = run_ranks(ranks, lambda world: run(world, tmp_path, ahead))
    in_memory = run_ranks(ranks, lambda world: run(world, None, ahead=False))
    assert all(map(runs.are_equal, in_store, in_memory))


def test_an_update_that_is_left_out_changes_nothing(tmp_path: Path) -> None:
    def run(store: Any) -> Any:
        head = runs.create(runs.LONE, store)
        for update in range(6):
            head.prepare(runs.batch(runs.LONE, update + 1)[1], update + 1)
            step = head.step(*runs.batch(runs.LONE, update), update, 0.1, hold=True)
            if update != 2:
                step.update_centers()
        return head.rows.export()

    assert runs.are_equal(run(tmp_path), run(None))


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3)])
def test_it_returns_to_each_checkpoint_on_any_number_of_ranks(tmp_path, before, after) -> None:
    origin = runs.trained(*[tmp_path] * before, updates=12)
    # What a kill has cut off is not read.
    with (tmp_path / "undo-00000012.rank-0000").open("ab") as file:
        file.write(b"PFCUNDO1 and no more")
    for update in (8, 4):
        arrays = runs.restored(origin, update, *[tmp_path] * after)
        assert runs.are_equal(arrays, runs.reference(update, ranks=before)), update


def test_a_run_goes_on_from_a_checkpoint_again_and_again(tmp_path: Path) -> None:
    folders, lengths = [tmp_path] * 2, set()
    origin, expected = runs.trained(*folders, ratio=0.1), runs.reference(7, ranks=2, ratio=0.1)
    for _ in range(3):
        assert runs.are_equal(runs.restored(origin, 4, *folders, stop=7, ratio=0.1), expected)
        lengths.add((tmp_path / "records.bin").stat().st_size)
    assert len(lengths) == 1
    # It is written as memory, where a full disk would end the process without a word.
    assert (tmp_path / "index.bin").stat().st_blocks * 512 >= 8 * runs.CLASSES


def test_a_checkpoint_that_is_gone_takes_its_log_with_it(tmp_path: Path) -> None:
    with runs.stored(runs.LONE, tmp_path) as head:
        for update in range(0, 16, 4):
            state: Any = head.export_state(update)
            runs.advance(runs.LONE, head, update, update + 4)
        state.when_saved([8, 12])
        assert [update for update, _ in logs(tmp_path)] == [12, 8]
        features, labels = runs.batch(runs.LONE, 16)
        head.step(features * float("nan"), labels, 16, 0.1)
        with pytest.raises(DataError, match="not finite"):
            head.export_state(17)


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, monkeypatch) -> None:
    origin = runs.trained(tmp_path)

    full = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    no_room = pytest.raises(DataError, match="No space left on device.*start again")
    with runs.stored(runs.LONE, tmp_path) as head, monkeypatch.context() as patch:
        head.load_state(runs.saved(origin, 8))
        patch.setattr(UndoLog, "append", full)
        with no_room as said:
            runs.advance(runs.LONE, head, 8, 12)
            head.export_state(12)
    assert "\n" not in str(said.value)
    assert runs.are_equal(runs.restored(origin, 8, tmp_path), runs.reference(8))


@pytest.mark.parametrize("name", ["records.bin", "index.bin", "lock"])
def test_no_other_file_is_overwritten(tmp_path: Path, name: str) -> None:
    folder, user = tmp_path / "store", tmp_path / "user"
    runs.trained(folder)
    user.write_bytes(bytes(1 << 20))
    (folder / name).unlink()
    (folder / name).symlink_to(user)
    refused = pytest.raises(DataError, match="it is a link|it is damaged")
    with refused, runs.stored(runs.LONE, folder) as head:
        runs.advance(runs.LONE, head, 0, 2)
    if name != "lock":
        # A new store replaces the link.
        (folder / "store.json").unlink()
        runs.trained(folder)
    assert user.read_bytes() == bytes(1 << 20)


def another(update: int) -> Any:
    return pytest.raises(ConfigError, match=f"centers of another run, at update {update}; give")


def test_the_store_of_another_run_is_not_overwritten(tmp_path: Path) -> None:
    origin = runs.trained(tmp_path)
    with another(8), runs.stored(runs.LONE, tmp_path) as head:
        head.begin(tmp_path)
    with pytest.raises(DataError, match="are in the store of its run; give its folder with"):
        runs.create(runs.LONE, None).load_state(runs.saved(origin, 8))
    runs.restored(origin, 8, tmp_path)


def began(folder: Path, run: Path, *, killed: bool) -> Any:
    """Begin a run, which ends without a checkpoint if it is killed; returns the centers."""

    def rank(world: Any) -> Any:
        with runs.stored(world, folder) as head:
            head.begin(run)
            head.export_state(0)
            runs.advance(world, head, 0, 3)
            # The checkpoint is begun; only ``when_saved`` would say that it exists.
            state: Any = head.export_state(3)
            if not killed:
                state.when_saved([3])
            return head.rows.export()

    return runs.joined(run_ranks(2, rank))


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    store, run = tmp_path / "store", tmp_path / "run"
    # No checkpoint needs what a run has left that was killed at once.
    with runs.stored(runs.LONE, store) as head:
        head.export_state(0)
        runs.advance(runs.LONE, head, 0, 1)
    first = began(store, run, killed=True)
    # Nobody else may: the checkpoint may exist.
    with another(3):
        began(store, tmp_path / "another", killed=True)
    assert runs.are_equal(began(store, run, killed=False), first)
    with another(3):
        began(store, run, killed=True)


def test_centers_that_are_read_are_those_of_a_new_run(tmp_path: Path) -> None:
    values = np.full((runs.CLASSES, runs.EMBEDDING), 0.75, np.float32)
    mx.nd.save(str(tmp_path / "0_centers.param"), mx.nd.array(values))
    with runs.stored(runs.LONE, tmp_path / "store", pretrained_centers=str(tmp_path)) as head:
        head.begin(tmp_path)
        assert np.array_equal(head.rows.export()["centers"], values)
        assert not head.rows.export()["momenta"].any()


def gone_back(folder: Path, origin: Origin, **others: Any) -> Origin:
    """Train from update 4 to 8 again; returns the origin of the new rows."""
    with runs.stored(runs.LONE, folder) as head:
        head.load_state(runs.saved(origin, 4, **others))
        runs.advance(runs.LONE, head, 4, 8)
        return Origin(*head.export_state(8).values.values())


def test_a_checkpoint_fits_no_rows_of_its_update_that_were_trained_again(tmp_path: Path) -> None:
    origin = runs.trained(tmp_path)
    again = gone_back(tmp_path, origin)
    assert again.number == origin.number and again != origin
    runs.refused("its rows of update 8 are not those of this checkpoint", origin, 8, tmp_path)
    runs.restored(again, 8, tmp_path)
    runs.restored(origin, 4, tmp_path)


def test_a_store_that_another_run_needs_is_refused(tmp_path: Path) -> None:
    store, run, other, moved = (tmp_path / name for name in ("store", "run", "other", "moved"))
    for folder in (run, other):
        folder.mkdir()
    # No run is known that needs it.
    origin = runs.trained(store)
    gone_back(store, origin, run=run)
    needed = {run: [{STORE: origin.number}], other: [{STORE: origin.number}]}
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    belongs = f"belongs to the run in {run}, whose checkpoints need"
    with pytest.raises(ConfigError, match=belongs):
        gone_back(store, origin, run=other, others=needed)
    assert before == {path.name: path.read_bytes() for path in store.iterdir()}
    # A copy may be used, also if the store itself is moved.
    shutil.copytree(store, tmp_path / "copy")
    gone_back(tmp_path / "copy", origin, run=other, others=needed)
    store.rename(moved)
    with pytest.raises(ConfigError, match=belongs):
        gone_back(moved, origin, run=other, others=needed)
    # The folder has checkpoints of another store, the same run has two paths, or it was moved.
    gone_back(moved, origin, run=other, others={run: [{STORE: 17}, {}]})
    (tmp_path / "link").symlink_to(other)
    gone_back(moved, origin, run=tmp_path / "link", others=needed)
    other.rmdir()
    gone_back(moved, origin, run=run, others=needed)


def test_a_store_that_is_replaced_ends_the_run(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with runs.stored(runs.LONE, store) as head:
        head.export_state(0)
        runs.advance(runs.LONE, head, 0, 4)
        when_saved: Any = head.export_state(4).when_saved
        store.rename(tmp_path / "moved")
        store.mkdir()
        for go_on in (lambda: when_saved([4]), lambda: head.export_state(8)):
            with pytest.raises(DataError, match=f"--center-store {store} is no longer the folder"):
                go_on()
    assert not [*store.iterdir()]


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


def test_what_is_wrong_with_a_store_is_one_line(tmp_path: Path) -> None:
    folder, nowhere = tmp_path / "store", tmp_path / "nowhere"
    origin, other = runs.trained(folder), "is not the store of this checkpoint"
    log, damaged = "undo-00000008.rank-0000", "damaged|does not match its checksum"
    # A row that is as it was at the checkpoint.
    index = Index(np.fromfile(folder / "index.bin", np.uint32))
    found = blocks(folder / log, 48, runs.CLASSES)
    changed = {row for block in found for row in (*block.new, *block.classes)}
    last = int(192 * max(index.places[[*({*np.flatnonzero(index.checks)} - changed)]]))
    # The seed stays a number: the checksum alone tells.
    seed = (folder / "store.json").read_bytes().index(b'"seed": ') + len('"seed": ')
    places = (("store.json", 60), ("store.json", seed), (log, 60), ("records.bin", last))
    for name, where in places:
        runs.damage(folder / name, where)
        runs.refused(damaged, origin, 8, folder)
        runs.damage(folder / name, where)
    runs.refused(other, origin._replace(number=17), 8, folder)
    runs.refused("does not reach back to update 6", origin, 6, folder)
    for name, size, match in (
        ("records.bin", last + 100, damaged), ("index.bin", 40, "has 40 bytes instead of 8000"),
    ):
        os.truncate(folder / name, size)
        runs.refused(match, origin, 8, folder)
    with pytest.raises(DataError, match=other):
        SavedRows(nowhere, origin, 8)
    with runs.stored(runs.LONE, nowhere):
        pass
    runs.refused(other, origin, 8, nowhere)
    header = Header.read(nowhere)
    assert header is not None
    replace(header, format="class centers 1").write(nowhere)
    runs.refused("store.json is damaged, or of another version", origin, 8, nowhere)


def test_a_run_excludes_readers_and_other_runs(tmp_path: Path) -> None:
    origin = runs.trained(tmp_path)
    in_use = pytest.raises(ConfigError, match="is in use by another run; wait for its end")
    for use in (lambda: runs.stored(runs.LONE, tmp_path), lambda: SavedRows(tmp_path, origin, 8)):
        with use(), in_use, runs.stored(runs.LONE, tmp_path):
            pass
    with runs.stored(runs.LONE, tmp_path), in_use:
        SavedRows(tmp_path, origin, 8)


def test_places_follow_each_other_and_those_of_ranks_differ(tmp_path, monkeypatch) -> None:
    path, layout, record = tmp_path / "records", layout_of(3, {}), 64

    def opened() -> Records:
        file, index = os.open(path, os.O_RDWR | os.O_CREAT, 0o666), np.zeros((5000, 2), np.uint32)
        return Records(file, Index(index), layout, seed=0, salt=0)

    def take(own: Records, count: int) -> np.ndarray:
        own._make_room(np.arange(count))
        return own.index.places[:count].copy()

    # Of one rank, and after a record that was being written when a run was killed.
    path.write_bytes(bytes(10 * record + 1))
    taken = [take(opened(), 2), take(opened(), 5000)]
    assert taken[0].tolist() == [11, 12] and np.array_equal(np.diff(taken[1]), np.ones(4999))

    def take_all(own: Records) -> np.ndarray:
        return np.concatenate([take(own, count % 9) for count in range(400)])

    monkeypatch.setattr("partial_fc.store.records._PLACES_AT_ONCE", 3)
    with ThreadPoolExecutor(4) as threads:
        places = np.concatenate([*threads.map(take_all, [opened() for _ in range(4)])])
    assert np.unique(places).size == places.size == 4 * sum(count % 9 for count in range(400))
    assert places.max() < path.stat().st_size // record


def test_what_a_write_leaves_out_is_written_again(tmp_path: Path, monkeypatch) -> None:
    transfer = records._transfer
    monkeypatch.setattr(records, "_transfer", lambda *a: 0 if a[-1] else transfer(*a))
    origin = runs.trained(tmp_path)
    assert runs.are_equal(runs.restored(origin, 8, tmp_path), runs.reference(8))
