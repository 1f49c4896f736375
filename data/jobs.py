"""What the packer and the inspector need because they work for minutes.

Their images are handled by threads: reading waits for the disk, and OpenCV works without Python's
lock. (Processes were measured and are slower: handing an image over costs more than reading it.)
Whatever the number of threads, results come in the order of the work, so that the same folder gives
the same file everywhere. Meanwhile the user sees how far it is, and may stop it at any time: files
under temporary names are then removed, which Python does only for an exception, not when a signal
ends the process.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import NoReturn, TypeVar

import cv2
from tqdm import tqdm

from runtime.errors import run_program

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Handing over one image costs as much as reading it; more at once would need more memory.
_CHUNK = 32
# Chunks under way for each thread, so that none waits for a slow neighbor.
_CHUNKS_AHEAD = 3
_SECONDS_BETWEEN_LINES = 10.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What a shell reports for a program that a signal has ended.
_SIGNAL_STATUS = 128


class Stopped(BaseException):
    """A signal asks the program to end. No ``Exception``: nobody shall take it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--workers``."""
    parser.add_argument(
        "--workers",
        type=_positive,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="threads that read and decode (%(default)s, the processors; more help on a slow disk)",
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


@contextmanager
def in_order(
    function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int
) -> Iterator[Iterator[_Result]]:
    """Apply a function in threads, some way ahead of whoever takes the results.

    Args:
        function: whatever it raises is raised in place of its result.
        items: its arguments, taken as they are needed.
        workers: the number of threads.

    Yields:
        The results, in the order of the items. They end with the ``with`` block.
    """
    # Threads of its own would compete with ours for the same cores.
    cv2.setNumThreads(0)
    pool = ThreadPoolExecutor(workers, "worker")
    try:
        yield _results(pool, function, iter(items), workers * _CHUNKS_AHEAD)
    finally:
        # Not waiting for them: a thread may hang in a disk that does not answer.
        pool.shutdown(wait=False, cancel_futures=True)


def track(items: Iterable[_Item], total: int, what: str) -> Iterator[_Item]:
    """Pass items on and show how many there were: a bar on a terminal, else a line now and then.

    Args:
        items: any.
        total: how many there will be.
        what: what is done to what, such as ``packing images``.
    """
    if sys.stderr.isatty():
        yield from tqdm(items, what, total, leave=False, unit="", dynamic_ncols=True)
        return
    began = reported = time.monotonic()
    for count, item in enumerate(items, 1):
        yield item
        now = time.monotonic()
        if now - reported >= _SECONDS_BETWEEN_LINES:
            reported = now
            pace = count / (now - began)
            left = f"{(total - count) / pace:,.0f} s left"
            print(f"{what}: {count:,} of {total:,}, {pace:,.0f}/s, {left}", file=sys.stderr)


def say(line: str) -> None:
    """Print a line to standard error, above the bar if there is one."""
    tqdm.write(line, file=sys.stderr)


def run_stoppable(main: Callable[[], int | None]) -> NoReturn:
    """Run a program that cleans up behind itself when it is told to stop.

    Ctrl-C, ``kill`` and a closed terminal end it with one line and the shell's status for the
    signal (130 for Ctrl-C). A signal that whoever started the program had it ignore (``nohup``)
    stays ignored.
    """
    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        run_program(main)
    except Stopped as stopped:
        say(f"stopped by {stopped.signal.name}: no unfinished file is left behind")
        sys.stdout.flush()
        # Not sys.exit, which would wait for the threads.
        os._exit(_SIGNAL_STATUS + stopped.signal)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let a signal to stop wait for the end of a step that must not be left half done."""
    waiting: list[int] = []
    held = [number for number in _STOP_SIGNALS if signal.getsignal(number) is _stop]
    for number in held:
        signal.signal(number, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        for number in held:
            signal.signal(number, _stop)
    if waiting:
        _stop(waiting[0], None)


def _stop(number: int, _: FrameType | None) -> None:
    # Once is enough: a second one would come in the middle of removing files.
    for other in _STOP_SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)


def _results(
    pool: ThreadPoolExecutor,
    function: Callable[[_Item], _Result],
    items: Iterator[_Item],
    ahead: int,
) -> Iterator[_Result]:
    pending: deque[Future[list[_Result]]] = deque()
    while chunk := list(islice(items, _CHUNK)):
        pending.append(pool.submit(_apply, function, chunk))
        if len(pending) > ahead:
            yield from pending.popleft().result()
    while pending:
        yield from pending.popleft().result()


def _apply(function: Callable[[_Item], _Result], chunk: list[_Item]) -> list[_Result]:
    return [function(item) for item in chunk]
