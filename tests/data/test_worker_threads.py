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


@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 1000])
def test_results_come_in_order(workers: int, count: int) -> None:
    def slow_start(item: int) -> int:
        time.sleep(0.02 * (item == 0))
        return -item

    with map_in_order(slow_start, range(count), workers) as results:
        assert list(results) == [-item for item in range(count)]


def test_only_some_items_are_taken_ahead() -> None:
    taken = []
    with map_in_order(abs, (taken.append(item) or item for item in range(10**6)), 2) as results:
        assert next(results) == 0
    assert len(taken) < 1000


def test_an_error_is_raised_in_place_of_its_result() -> None:
    with map_in_order(lambda i: 1 // (40 - i), range(99), 2) as found:
        assert [next(found) for _ in range(32)] == [1 // (40 - i) for i in range(32)]
        with pytest.raises(ZeroDivisionError):
            next(found)


def test_leaving_does_not_wait_for_a_thread_that_hangs() -> None:
    release = threading.Event()
    began = time.monotonic()
    with map_in_order(lambda _: release.wait(200), range(1), 1):
        pass
    with map_in_order(lambda _: release.wait(200), range(1000), 1) as results:
        threading.Timer(0.2, release.set).start()
        next(results)
        release.clear()
    assert time.monotonic() - began < 100
    release.set()


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch, capsys) -> None:
    now = itertools.count(0.0, 0.5)
    monkeypatch.setattr(worker_threads, "time", SimpleNamespace(monotonic=lambda: next(now)))
    assert list(track(range(50), 50, "packing images")) == list(range(50))
    assert capsys.readouterr().err.splitlines() == [
        "packing images: 20 of 50, 2/s, 15 s left",
        "packing images: 40 of 50, 2/s, 5 s left",
    ]


def test_a_terminal_gets_a_bar(monkeypatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    assert list(track(range(5), 5, "packing images")) == list(range(5))
    assert "packing images: " in screen.getvalue() and "0/5" in screen.getvalue()
