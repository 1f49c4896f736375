"""What the packer and the inspector need because they work for minutes.

Their images are handled by threads: reading waits for the disk, and OpenCV works without Python's
lock. (Processes were measured and are slower: handing an image over costs more than reading it.)
Whatever the number of threads, results come in the order of the work, so that the same folder gives
the same file everywhere. Meanwhile the user sees how far it is.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import cv2
from tqdm import tqdm

from runtime import processors

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Handing over one image costs as much as reading it; more at once would need more memory.
_CHUNK = 32
# Chunks under way for each thread, so that none waits for a slow neighbor.
_CHUNKS_AHEAD = 3
_SECONDS_BETWEEN_LINES = 10.0


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--workers``."""
    parser.add_argument(
        "--workers",
        type=_positive,
        default=processors.available(),
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
