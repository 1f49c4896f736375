"""A store: back to each checkpoint, also through kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partial_fc.store.center_store import CenterStore
from partial_fc.store.header import Origin
from partial_fc.store.index import Index
from partial_fc.store.undo import UndoLog, logs
from runtime.errors import DataError
from tests.support.stored_head import (
    INTERVAL,
    SavedStore,
    advance,
    are_equal,
    batch,
    create,
    joined,
    opened,
    reference,
    restored,
    resume,
    trained,
)
from tests.support.thread_world import run_ranks

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 1), (1, 2), (2, 3)])
def test_it_returns_to_each_checkpoint_on_any_number_of_ranks(
    tmp_path: Path, before: int, after: int
) -> None:
    def train(world: Any) -> Origin:
        head = create(world, tmp_path)
        for update in range(0, 12, 4):
            state = head.export_state(update)
            advance(world, head, update, update + 4)
        advance(world, head, 12, 14)
        head.rows.close()
        return Origin(*state.values.values())

    origin = run_ranks(before, train)[0]

    for update in (8, 4):
        saved = SavedStore(origin, update)
        arrays = joined(run_ranks(after, partial(restored, folder=tmp_path, saved=saved)))
        assert are_equal(arrays, reference(update, ranks=before)), update


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_goes_on_from_a_checkpoint_again_and_again(tmp_path: Path, ranks: int) -> None:
    """Rows that are undone lose their places, and others get these."""

    def train(world: Any) -> Origin:
        head = create(world, tmp_path, ratio=0.1)
        for update in range(0, 12, 4):
            state = head.export_state(update)
            advance(world, head, update, update + 4)
        head.rows.close()
        return Origin(*state.values.values())

    def expected(world: Any) -> Any:
        head = create(world, None, ratio=0.1)
        advance(world, head, 0, 7)
        return head.rows.export()

    origin = run_ranks(ranks, train)[0]
    reached = joined(run_ranks(ranks, expected))

    def again(world: Any) -> Any:
        head = create(world, tmp_path, ratio=0.1)
        head.load_state(SavedStore(origin, 4))
        advance(world, head, 4, 7)
        arrays = head.rows.export()
        head.rows.close()
        return arrays

    lengths = set()
    for _ in range(3):
        assert are_equal(joined(run_ranks(ranks, again)), reached)
        lengths.add((tmp_path / "records.bin").stat().st_size)
    assert len(lengths) == 1


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


def test_a_log_that_a_kill_has_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    origin = trained(tmp_path)
    with (tmp_path / "undo-00000008.rank-0000").open("ab") as file:
        file.write(b"PFCUNDO1 and no more")
    opened(tmp_path, origin, 8)


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


def test_a_kill_while_it_is_restored_can_be_undone_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = trained(tmp_path, updates=12)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CenterStore, "_begin_log", killed)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path, origin, 8)
    assert [update for update, _ in logs(tmp_path)] == [8, 4, 0]
    again = partial(restored, folder=tmp_path, saved=SavedStore(origin, 8))
    assert are_equal(run_ranks(1, again)[0], reference(8))


@pytest.mark.parametrize("name", ["records.bin", "index.bin", "lock"])
@pytest.mark.parametrize("is_new", [True, False])
def test_no_other_file_is_overwritten(tmp_path: Path, name: str, is_new: bool) -> None:
    """A store in a folder of somebody else, who has put a link to a file of the user there."""
    (tmp_path / "user").write_bytes(bytes(1 << 20))
    folder = tmp_path / "store"
    if is_new:
        folder.mkdir()
    else:
        trained(folder)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "user")

    def train(world: Any) -> None:
        head = create(world, folder)
        head.export_state(0)
        advance(world, head, 0, 2)
        head.rows.close()

    if is_new and name != "lock":
        run_ranks(1, train)
        assert not (folder / name).is_symlink()
    else:
        with pytest.raises(DataError, match="it is a link|it is damaged"):
            run_ranks(1, train)
    assert (tmp_path / "user").read_bytes() == bytes(1 << 20)


def test_an_undo_log_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "user").write_bytes(b"precious")
    (tmp_path / "store").mkdir()
    log = tmp_path / "store" / "undo-00000000.rank-0000"
    log.symlink_to(tmp_path / "user")
    UndoLog(tmp_path / "store", 0, 0, Index(np.zeros((1, 2), np.uint32)), (0, 1)).close()
    assert (tmp_path / "user").read_bytes() == b"precious" and not log.is_symlink()
