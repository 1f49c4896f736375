"""A watchdog barks when there is no progress, and only then."""

from __future__ import annotations

import time

import pytest

from training.stopwatch import BACKBONE, COMMUNICATION, Stopwatch
from training.watchdog import STALLED_STATUS, Watchdog


class Rank:
    """A watched rank whose end is noted."""

    def __init__(self, folder):
        self.ends = []
        self.stopwatch = Stopwatch()
        self.log_file = folder / "log"
        self.watchdog = Watchdog(
            0.2, rank=3, stopwatch=self.stopwatch, log_file=self.log_file, tick=0.01,
            end=self.ends.append,
        )  # fmt: skip

    def wait(self, seconds=10.0):
        end = time.monotonic() + seconds
        while not self.ends and time.monotonic() < end:
            time.sleep(0.01)
        return self.ends


@pytest.fixture
def rank(tmp_path):
    watched = Rank(tmp_path)
    yield watched
    watched.watchdog.close()


def test_no_progress_ends_the_process_and_says_where(rank, capfd):
    rank.watchdog.beat(56)
    with rank.stopwatch.part(BACKBONE):
        assert rank.wait() == [STALLED_STATUS]
    for said in (rank.log_file.read_text(), capfd.readouterr().err):
        assert "error: rank 3 has made no progress for 0 s, in update 57, backbone;" in said
        assert "test_no_progress_ends_the_process" in said, "the stacks of all threads"


def test_progress_keeps_it_quiet(rank):
    for update in range(20):
        rank.watchdog.beat(update)
        time.sleep(0.05)
    assert rank.ends == []


def test_the_start_and_what_is_between_updates_may_take_longer(rank):
    assert rank.wait(0.6) == []
    rank.watchdog.beat(1)
    with rank.watchdog.patience():
        assert rank.wait(0.6) == []
    assert rank.wait() == [STALLED_STATUS]


def test_who_waits_for_others_barks_last(rank):
    rank.watchdog.beat(1)
    with rank.stopwatch.part(COMMUNICATION):
        assert rank.wait(0.6) == []
    assert rank.wait() == [STALLED_STATUS]
