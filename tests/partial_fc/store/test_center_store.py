"""A store: back to each checkpoint, also through kills and a full disk; and no other file."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partial_fc.store.center_store import CenterStore
from partial_fc.store.index import Index
from partial_fc.store.undo import UndoLog, logs
from runtime.errors import DataError
from tests.support.stored_head import (
    INTERVAL,
    LONE,
    advance,
    are_equal,
    batch,
    reference,
    restored,
    resume,
    saved,
    stored,
    trained,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 1), (1, 2), (2, 3)])
def test_it_returns_to_each_checkpoint_on_any_number_of_ranks(
    tmp_path: Path, before: int, after: int
) -> None:
    origin = trained(*[tmp_path] * before, updates=12)
    # What a kill has cut off is not read.
    with (tmp_path / "undo-00000012.rank-0000").open("ab") as file:
        file.write(b"PFCUNDO1 and no more")
    for update in (8, 4):
        arrays = restored(origin, update, *[tmp_path] * after)
        assert are_equal(arrays, reference(update, ranks=before)), update


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_goes_on_from_a_checkpoint_again_and_again(tmp_path: Path, ranks: int) -> None:
    """Rows that are undone lose their places, and others get these."""
    origin = trained(*[tmp_path] * ranks, ratio=0.1)
    expected, lengths = reference(7, ranks=ranks, ratio=0.1), set()
    for _ in range(3):
        assert are_equal(restored(origin, 4, *[tmp_path] * ranks, stop=7, ratio=0.1), expected)
        lengths.add((tmp_path / "records.bin").stat().st_size)
    assert len(lengths) == 1


def test_a_checkpoint_that_is_gone_takes_its_log_with_it(tmp_path: Path) -> None:
    with stored(LONE, tmp_path) as head:
        for update in range(0, 16, 4):
            state = head.export_state(update)
            advance(LONE, head, update, update + 4)
        assert state.when_saved is not None
        state.when_saved([8, 12])
        assert [update for update, _ in logs(tmp_path)] == [12, 8]


@pytest.mark.waits
def test_a_kill_at_any_moment_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    store, progress, file = (tmp_path / name for name in ("store", "progress", "reference.npz"))
    # Kernels of their own: two processes that compile at the same time, as those of other tests do,
    # may round differently.
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    command = [sys.executable, "-m", "tests.support.stored_head"]

    def expected(updates: int) -> dict[str, Any]:
        words = [*command, "reference", str(updates), str(file)]
        subprocess.run(words, cwd=ROOT, env=environment, check=True)
        with np.load(file) as arrays:
            return dict(arrays)

    def count_lines() -> int:
        return len(progress.read_text().splitlines()) if progress.exists() else 0

    expected(1)
    for delay in np.random.default_rng(3).uniform(0.0, 0.4, int(os.environ.get("KILLS", "2"))):
        lines = count_lines()
        words = [*command, str(store), str(progress), "100000"]
        process = subprocess.Popen(words, cwd=ROOT, env=environment)
        try:
            while count_lines() < lines + 2:
                assert process.poll() is None
                time.sleep(0.01)
            time.sleep(delay)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        with stored(LONE, store) as head:
            update = resume(head, progress)
            arrays = head.rows.export()
        assert update >= INTERVAL * (lines + 2)
        assert are_equal(arrays, expected(update))


def test_numbers_that_are_not_finite_get_no_checkpoint(tmp_path: Path) -> None:
    with stored(LONE, tmp_path) as head:
        head.export_state(0)
        features, labels = batch(LONE, 0)
        head.step(features * float("nan"), labels, 0, 0.1)
        with pytest.raises(DataError, match="not finite"):
            head.export_state(1)


def test_a_kill_while_it_is_restored_can_be_undone_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = trained(tmp_path, updates=12)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(CenterStore, "_begin_log", killed)
        with pytest.raises(KeyboardInterrupt):
            restored(origin, 8, tmp_path)
    assert [update for update, _ in logs(tmp_path)] == [8, 4, 0]
    assert are_equal(restored(origin, 8, tmp_path), reference(8))


def test_a_full_disk_is_one_line_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = trained(tmp_path)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    no_room = pytest.raises(DataError, match="No space left on device.*start again")
    with stored(LONE, tmp_path) as head, monkeypatch.context() as patch:
        head.load_state(saved(origin, 8))
        patch.setattr(UndoLog, "append", full)
        with no_room as said:
            advance(LONE, head, 8, 12)
            head.export_state(12)
    assert "\n" not in str(said.value)
    assert are_equal(restored(origin, 8, tmp_path), reference(8))


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

    def train() -> None:
        with stored(LONE, folder) as head:
            head.export_state(0)
            advance(LONE, head, 0, 2)

    if is_new and name != "lock":
        train()
        assert not (folder / name).is_symlink()
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
