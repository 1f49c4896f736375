"""A watchdog ends a rank without progress and no other; compiled code ends one without Python."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen
from textwrap import dedent

import pytest

from runtime.stopwatch import BACKBONE, COMMUNICATION, Stopwatch
from training.log.watchdog import PAUSE_FACTOR, Others, Watchdog

pytestmark = pytest.mark.waits

WHO = f"rank 3 on {socket.gethostname()}"
# docs/reliability.md says it.
STALLED_STATUS = 75
LIMIT = 0.1
PROCESS = """
import sys, threading, time
from pathlib import Path
from runtime.stopwatch import Stopwatch
from training.log.watchdog import Watchdog

assert "mxnet" not in sys.modules
watchdog = Watchdog(0.5, rank=3, stopwatch=Stopwatch(), log_file=Path(sys.argv[1]), tick=0.01)
"""


class Rank:
    def __init__(self, folder, seconds):
        self.ends, self.others, self.stopwatch = [], Others, Stopwatch()
        self.log_file = folder / "log"
        self.watchdog = Watchdog(
            seconds, rank=3, stopwatch=self.stopwatch, log_file=self.log_file, tick=0.01,
            others=lambda: self.others(),
        )  # fmt: skip
        # The alarm ends a process whose stacks cannot be printed.
        self.watchdog.end_process = lambda: self.ends.append(STALLED_STATUS + 0 * signal.alarm(0))

    def wait(self, seconds=10.0):
        end = time.monotonic() + seconds
        while not self.ends and time.monotonic() < end:
            time.sleep(0.01)
        return self.ends


@pytest.fixture
def watch(tmp_path):
    watched = []

    def start(seconds=LIMIT, folder=tmp_path):
        watched.append(Rank(folder, seconds))
        return watched[-1]

    yield start
    for rank in watched:
        rank.watchdog.close()


@pytest.fixture
def rank(watch):
    return watch()


def test_no_progress_ends_the_process_and_names_the_update(rank, capfd):
    rank.watchdog.beat(56)
    # The limit of the update that follows a pause is the short one.
    with rank.watchdog.pause():
        pass
    with rank.stopwatch.part(BACKBONE):
        assert rank.wait(4 * LIMIT) == [STALLED_STATUS]
    for said in (rank.log_file.read_text(), capfd.readouterr().err):
        error = f"error: {WHO} has made no progress for 0 s, in update 57, backbone;"
        assert said.startswith(error) and "test_no_progress" in said


def test_what_is_outside_of_updates_may_take_longer(rank, capfd):
    assert rank.wait(2 * LIMIT) == [] and not rank.log_file.exists()
    for update in range(10):
        rank.watchdog.beat(update)
        assert rank.wait(0.03) == []
    with rank.watchdog.pause():
        assert rank.wait(2 * LIMIT) == []
    rank.watchdog.leave_updates()
    with rank.watchdog.pause():
        assert rank.wait(2 * LIMIT) == []
    assert rank.wait(4 * LIMIT) == []
    assert rank.wait() == [STALLED_STATUS]
    assert "outside of updates, after update 9" in capfd.readouterr().err


def test_a_rank_that_waits_for_others_is_ended_last(watch):
    waiting, working = watch(0.3), watch(0.3)
    for rank in (waiting, working):
        rank.watchdog.beat(1)
    with waiting.stopwatch.part(COMMUNICATION):
        assert working.wait() == [STALLED_STATUS]
        assert waiting.ends == [], "ten ticks more"
        assert waiting.wait() == [STALLED_STATUS]


def test_a_closed_screen_and_a_missing_folder_do_not_prevent_the_end(watch, tmp_path, monkeypatch):
    with open(os.devnull) as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        rank = watch(folder=tmp_path / "missing")
        rank.watchdog.beat(1)
        assert rank.wait() == [STALLED_STATUS]


@pytest.fixture
def start(tmp_path):
    """Start a process that is watched at a limit of 0.5 s; its compiled timer waits for 1.6 s."""
    with ExitStack() as stack:

        def started(lines):
            words = [sys.executable, "-u", "-c", PROCESS + dedent(lines), str(tmp_path / "log")]
            pipes: dict = dict.fromkeys(("stdin", "stdout", "stderr"), PIPE)
            process = Popen(words, cwd=Path(__file__).parents[3], text=True, bufsize=1, **pipes)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout.readline() == "ready\n", process.stderr.read()
            return process

        yield started


@pytest.mark.thorough
def test_a_process_that_is_suspended_or_whose_watchdog_is_closed_is_not_ended(start):
    process = start("""
        threading.Thread(target=sys.stdin.read, daemon=True, name="reader").start()
        watchdog.beat(1)
        print("ready")
        reader = next(t for t in threading.enumerate() if t.name == "reader")
        while reader.is_alive():
            watchdog.beat(1)
            time.sleep(0.05)
        watchdog.close()
        assert not {"watchdog", "native timer"} & {t.name for t in threading.enumerate()}
        time.sleep(1.8)
        print("well")
    """)
    time.sleep(1.8)
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.2)
    process.send_signal(signal.SIGCONT)
    time.sleep(0.2)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "well\n"), err


def test_a_hang_that_holds_pythons_lock_is_ended_by_compiled_code(start):
    process = start("""
        import ctypes
        def hangs():
            print('ready', flush=True)
            ctypes.PyDLL(None).pause()
        watchdog.beat(1)
        hangs()
    """)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (STALLED_STATUS, "")
    assert err.startswith(f"error: {WHO} has made no progress, and Python does not run any more")
    assert "in hangs\n" in err, "the stacks of all threads"


def test_progress_of_others_counts_while_this_rank_waits_for_them(rank):
    """Outside of updates, as worker 0 does at the end of an asynchronous run, and within one."""
    steps = itertools.count()
    rank.others = lambda: Others(next(steps))
    assert rank.wait(2 * PAUSE_FACTOR * LIMIT) == []
    rank.watchdog.beat(1)
    with rank.stopwatch.part(COMMUNICATION):
        assert rank.wait(5 * LIMIT) == []
        rank.others = lambda: Others(-1)
        assert rank.wait() == [STALLED_STATUS], "no other comes further"


@pytest.mark.parametrize(("part", "pauses"), [(COMMUNICATION, 2), (BACKBONE, 1000)])
def test_an_update_may_wait_for_the_pauses_of_others_but_own_work_may_not(part, pauses, rank):
    rank.watchdog.beat(1)
    rank.others = lambda: Others(None, pauses)
    with rank.stopwatch.part(part):
        if part == COMMUNICATION:
            assert rank.wait(pauses * PAUSE_FACTOR * LIMIT) == []
        assert rank.wait() == [STALLED_STATUS]
