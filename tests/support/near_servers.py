"""Parameter servers without processes: in memory, with the updater of the real ones.

A test decides in which order the pushes and pulls of several workers reach the servers: its
function is called before each of them, and may let another worker act, wait, or raise an exception.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from parallel.parameter_server import exchange
from parallel.parameter_server.assignment import WORKER, Assignment
from parallel.parameter_server.exchange import Exchange
from parallel.parameter_server.messages import TAIL
from parallel.parameter_server.schemes import SCHEMES
from parallel.parameter_server.server import Updater
from parallel.parameter_server.shared_table import SharedTable
from parallel.parameter_server.trace import Trace
from parallel.world import LoneWorld, World
from runtime.mxnet import mx


class WeightedExchange(Exchange):
    weights: list[Any]


class NearServers:
    """The arrays of some servers. Not for threads that run at once; see ``in_random_turns``.

    Attributes:
        arrays: by key.
        before: is called with "push" or "pull" and the number of a bucket, before that is done.
    """

    def __init__(self, monkeypatch, workers: int, servers: int, **assignment) -> None:
        self.arrays: dict[int, Any] = {}
        self.before: Callable[[str, int], None] = lambda what, bucket: None
        given = {"bucket_elements": 4, **assignment}
        place = (WORKER, "127.0.0.1", 1, "127.0.0.1", "lo")
        self.assignment = Assignment(*place, workers, servers, **given)
        self._updaters: list[Updater] = []
        monkeypatch.setattr(exchange, "Store", lambda *arguments: _NearStore(self, *arguments))

    def worker(
        self, number: int, scheme: str = "dist_async", group: Optional[World] = None, **options
    ) -> WeightedExchange:
        """A worker that has the servers' weights: 0, 1, 2 ... in two parameters."""
        own = replace(self.assignment, worker=number)
        worker = WeightedExchange(
            SCHEMES[scheme], own, group or LoneWorld(), staleness=None, images_per_step=1, **options
        )
        worker.weights = [mx.nd.arange(5), mx.nd.arange(5, 12)]
        worker.start(worker.weights, [1.0, 1.0], momentum=0.0, weight_decay=0.0, version=0)
        return worker

    def begin(self, settings, arrays) -> None:
        if not self._updaters:
            names = (f"server-{number}" for number in range(self.assignment.num_servers))
            self._updaters = [
                Updater(settings, Trace(self.assignment.trace, name)) for name in names
            ]
            self.arrays = {key: array.copy() for key, array in arrays.items()}

    def push(self, key: int, array) -> None:
        self._updaters[key * 9973 % len(self._updaters)](key, array.copy(), self.arrays[key])

    def pull(self, key: int, into) -> None:
        into[:] = self.arrays[key]


class _NearStore:
    """As ``parallel.parameter_server.store.Store``, whose requests go to the servers one by one."""

    def __init__(self, servers: NearServers, kind: str, buckets, table: int, pushers: int) -> None:
        self._servers, self._table_key = servers, table
        self._keys = [bucket.key for bucket in buckets]
        self._rows = mx.nd.array(SharedTable.empty(pushers).rows.reshape(-1))
        self.sent = [mx.nd.zeros((bucket.size + TAIL,)) for bucket in buckets]
        self.received = [array.copy() for array in self.sent]
        self._is_pulled = False

    def start(self, settings) -> None:
        arrays = {self._table_key: self._rows, **dict(zip(self._keys, self.received))}
        self._servers.begin(settings, arrays)

    def push(self) -> None:
        for bucket, (key, array) in enumerate(zip(self._keys, self.sent)):
            self._servers.before("push", bucket)
            self._servers.push(key, array)

    def begin_pull(self) -> None:
        self._is_pulled = False
        self.pull()
        self._is_pulled = True

    def pull(self) -> None:
        if not self._is_pulled:
            for bucket, (key, array) in enumerate(zip(self._keys, self.received)):
                self._servers.before("pull", bucket)
                self._servers.pull(key, array)
        self._is_pulled = False

    def add_to_table(self, change) -> None:
        self._servers.push(self._table_key, mx.nd.array(change.reshape(-1)))

    def read_table(self) -> SharedTable:
        self._servers.pull(self._table_key, self._rows)
        return SharedTable.decode(self._rows.asnumpy())


def in_random_turns(
    servers: NearServers, workers: int, seed: int, work: Callable[[int], None]
) -> None:
    """Let workers do their ``work``, one at a time, by an order that depends on the seed alone.

    It may change before each push and pull of a bucket; the last worker is the fastest.
    """
    rng, own, errors = random.Random(seed), threading.local(), []
    may_run = {number: threading.Semaphore(0) for number in range(workers)}

    def choose() -> None:
        if may_run:
            numbers = sorted(may_run)
            (chosen,) = rng.choices(numbers, weights=[2**number for number in numbers])
            may_run[chosen].release()

    def stop(what: str, bucket: int) -> None:
        mine = may_run[own.number]
        choose()
        mine.acquire()

    def take_part(number: int) -> None:
        own.number = number
        may_run[number].acquire()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)
        del may_run[number]
        choose()

    servers.before = stop
    threads = [threading.Thread(target=take_part, args=(number,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    choose()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def gradients() -> list:
    """Of the weights of ``NearServers.worker``: 1 everywhere."""
    return [mx.nd.ones(5), mx.nd.ones(7)]


def applied(folder: Path) -> dict[int, list[tuple[int, ...]]]:
    """By bucket, what the servers wrote: pusher, sent version, version and staleness."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for path in folder.glob("server-*"):
        for line in path.read_text().splitlines():
            key, *numbers = map(int, line.split())
            found.setdefault(key, []).append(tuple(numbers))
    return found
