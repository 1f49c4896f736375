from __future__ import annotations

import io
import itertools
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from data import worker_threads
from data.worker_threads import map_in_order, track


@pytest.mark.parametrize(("workers", "count"), [(1, 33), (2, 32), (2, 0), (7, 1000)])
def test_results_come_in_order(workers: int, count: int) -> None:
    def slow_start(item: int) -> int:
        time.sleep(0.02 * (item == 0))
        return -item

    with map_in_order(slow_start, range(count), workers) as results:
        assert list(results) == [-item for item in range(count)]


def test_some_items_are_taken_ahead_and_an_error_replaces_its_result() -> None:
    taken = []
    items = (taken.append(item) or item for item in range(10**6))
    with map_in_order(lambda i: 1 // (40 - i), items, 2) as found:
        assert [next(found) for _ in range(32)] == [1 // (40 - i) for i in range(32)]
        with pytest.raises(ZeroDivisionError):
            next(found)
    assert len(taken) < 1000


def test_leaving_does_not_wait_for_a_thread_that_hangs() -> None:
    release, began = threading.Event(), time.monotonic()
    with map_in_order(lambda _: release.wait(100), range(1), 1):
        pass
    assert time.monotonic() - began < 50
    release.set()


def test_progress(monkeypatch, capsys) -> None:
    """Without a terminal there is a line now and then; a terminal gets a bar."""
    now = itertools.count(0.0, 0.5)
    with monkeypatch.context() as patch:
        patch.setattr(worker_threads, "time", SimpleNamespace(monotonic=lambda: next(now)))
        assert list(track(range(50), 50, "packing images")) == list(range(50))
    first, second = capsys.readouterr().err.splitlines()
    assert first == "packing images: 20 of 50, 2/s, 15 s left"
    assert second == "packing images: 40 of 50, 2/s, 5 s left"
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    assert list(track(range(5), 5, "packing images")) == list(range(5))
    assert "packing images: " in screen.getvalue() and "0/5" in screen.getvalue()
