"""The thread that writes checkpoints; what it writes is in test_resume."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from parallel.world import LoneWorld
from training.checkpoint.storage import Storage
from training.checkpoint.writer import Checkpointer


def save(folder: Path) -> None:
    with Checkpointer({}, Storage.find(folder, LoneWorld()), keep=1, about={}) as checkpointer:
        checkpointer.save(3)
    assert (folder / "checkpoints/update-00000003/manifest.json").exists()


@pytest.mark.parametrize(("before", "writing"), [(0, 10), (15, 19), (19, 19), (-5, 5)])
def test_the_writing_thread_has_a_lower_priority_than_the_run(
    before: int, writing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "getpriority", lambda which, thread: before)
    monkeypatch.setattr(os, "setpriority", lambda *change: changes.append(change))
    save(tmp_path)
    ((which, thread, niceness),) = changes
    assert (which, niceness) == (os.PRIO_PROCESS, writing)
    assert thread not in (0, threading.get_native_id())


def test_a_priority_that_cannot_be_set_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "setpriority", refuse)
    save(tmp_path)
