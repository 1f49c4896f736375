"""A store: back to each checkpoint, also through kills and a full disk; and no other file."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partial_fc.store.header import STORE, Origin
from partial_fc.store.index import Index
from partial_fc.store.undo import UndoLog, logs
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from tests.support import stored_head as runs
from tests.support.thread_world import run_ranks


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
    """Rows that are undone lose their places, and others get these."""
    folders, lengths = [tmp_path] * 2, set()
    origin, expected = runs.trained(*folders, ratio=0.1), runs.reference(7, ranks=2, ratio=0.1)
    for _ in range(3):
        assert runs.are_equal(runs.restored(origin, 4, *folders, stop=7, ratio=0.1), expected)
        lengths.add((tmp_path / "records.bin").stat().st_size)
    assert len(lengths) == 1


def test_a_checkpoint_that_is_gone_takes_its_log_with_it(tmp_path: Path) -> None:
    """And numbers that are not finite get none."""
    with runs.stored(runs.LONE, tmp_path) as head:
        for update in range(0, 16, 4):
            state = head.export_state(update)
            runs.advance(runs.LONE, head, update, update + 4)
        assert state.when_saved is not None
        state.when_saved([8, 12])
        assert [update for update, _ in logs(tmp_path)] == [12, 8]
        features, labels = runs.batch(runs.LONE, 16)
        head.step(features * float("nan"), labels, 16, 0.1)
        with pytest.raises(DataError, match="not finite"):
            head.export_state(17)


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, monkeypatch) -> None:
    origin = runs.trained(tmp_path)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

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
@pytest.mark.parametrize("is_new", [True, False])
def test_no_other_file_is_overwritten(tmp_path: Path, name: str, is_new: bool) -> None:
    """A store in a folder of somebody else, who has put a link to a file of the user there."""
    folder, link = tmp_path / "store", tmp_path / "store" / name
    (tmp_path / "user").write_bytes(bytes(1 << 20))
    if is_new:
        folder.mkdir()
    else:
        runs.trained(folder)
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "user")

    def train() -> None:
        with runs.stored(runs.LONE, folder) as head:
            head.export_state(0)
            runs.advance(runs.LONE, head, 0, 2)

    if is_new and name != "lock":
        train()
        assert not link.is_symlink()
    else:
        with pytest.raises(DataError, match="it is a link|it is damaged"):
            train()
    assert (tmp_path / "user").read_bytes() == bytes(1 << 20)


def test_an_undo_log_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "user").write_bytes(b"precious")
    log = tmp_path / "undo-00000000.rank-0000"
    log.symlink_to(tmp_path / "user")
    UndoLog(tmp_path, 0, 0, Index(np.zeros((1, 2), np.uint32)), (0, 1)).close()
    assert (tmp_path / "user").read_bytes() == b"precious" and not log.is_symlink()


def another(update: int) -> Any:
    return pytest.raises(ConfigError, match=f"centers of another run, at update {update}; give")


def test_the_store_of_another_run_is_not_overwritten(tmp_path: Path) -> None:
    origin = runs.trained(tmp_path)
    with another(8), runs.stored(runs.LONE, tmp_path) as head:
        runs.advance(runs.LONE, head, 0, 1)
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
            state = head.export_state(3)
            if not killed:
                assert state.when_saved is not None
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
    # The one from which it went back is as it was.
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
        when_saved = head.export_state(4).when_saved
        assert when_saved is not None
        store.rename(tmp_path / "moved")
        store.mkdir()
        for go_on in (lambda: when_saved([4]), lambda: head.export_state(8)):
            with pytest.raises(DataError, match=f"--center-store {store} is no longer the folder"):
                go_on()
    assert not [*store.iterdir()]
