"""Worker threads of the commands that handle many images, and their progress on the terminal.

Threads suffice: reading waits for the disk, and OpenCV works without Python's lock. (Processes were
measured and are slower: passing an image to another process costs more than reading it.) Results
come in the order of the items with any number of threads, so that a folder always gives the same
file.
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
from runtime.command_line import positive_integer
from runtime.errors import one_line

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Items per task: a task for each would cost as much as reading an image; more need more memory.
_CHUNK = 32
# Tasks under way per thread, so that none waits while another one is slow.
_CHUNKS_AHEAD = 3
_SECONDS_BETWEEN_LINES = 10.0


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--workers``."""
    parser.add_argument(
        "--workers",
        type=positive_integer,
        default=processors.available(),
        metavar="N",
        help="threads that read and decode (%(default)s, the processors; more help on a slow disk)",
    )


@contextmanager
def map_in_order(
    function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int
) -> Iterator[Iterator[_Result]]:
    """Apply a function to items in threads, somewhat ahead of the use of the results.

    Args:
        function: an error that it raises is raised in place of its result.
        items: its arguments, taken when they are needed.
        workers: the number of threads.

    Yields:
        An iterator over the results, in the order of the items; valid in the ``with`` block.
    """

    def results() -> Iterator[_Result]:
        pending: deque[Future[list[_Result]]] = deque()
        rest = iter(items)
        while chunk := list(islice(rest, _CHUNK)):
            pending.append(pool.submit(lambda chunk: list(map(function, chunk)), chunk))
            if len(pending) > workers * _CHUNKS_AHEAD:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()

    # OpenCV's own threads would compete with these for the same cores.
    cv2.setNumThreads(0)
    pool = ThreadPoolExecutor(workers, "worker")
    try:
        yield results()
    finally:
        # Without waiting: a thread may hang in a disk that does not answer.
        pool.shutdown(wait=False, cancel_futures=True)


def track(items: Iterable[_Item], total: int, what: str) -> Iterator[_Item]:
    """Yield items and show progress: a bar on a terminal, else a line every ten seconds.

    ``what`` names the work, such as ``packing images``; ``total`` is the number of items.
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
    """Print a line to standard error, above the progress bar if there is one."""
    tqdm.write(one_line(line), file=sys.stderr)
