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


class Priorities:
    """A system that lets nobody raise a priority."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, niceness: int) -> None:
        self.niceness = {threading.get_native_id(): niceness}
        self._inherited = niceness
        monkeypatch.setattr(os, "getpriority", self.get)
        monkeypatch.setattr(os, "setpriority", self.set)

    def get(self, which: int, thread: int) -> int:
        return self.niceness.setdefault(thread, self._inherited)

    def set(self, which: int, thread: int, niceness: int) -> None:
        if niceness < self.get(which, thread):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        self.niceness[thread] = niceness


def save(folder: Path) -> Path:
    with Checkpointer({}, Storage.find(folder, LoneWorld()), keep=1, about={}) as checkpointer:
        checkpointer.save(3)
    assert checkpointer.last is not None
    return checkpointer.last


@pytest.mark.parametrize(("before", "writing"), [(0, 10), (5, 15), (15, 19), (19, 19), (-5, 5)])
def test_the_writing_thread_has_a_lower_priority_than_the_run(
    before: int, writing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    priorities = Priorities(monkeypatch, before)
    assert (save(tmp_path) / "manifest.json").exists()
    own = priorities.niceness.pop(threading.get_native_id())
    assert (own, [*priorities.niceness.values()]) == (before, [writing])


def test_a_priority_that_cannot_be_set_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "setpriority", refuse)
    assert (save(tmp_path) / "manifest.json").exists()
