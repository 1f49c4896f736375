"""Parameter servers in memory, with the updater of the real ones.

A test decides in which order the pushes and pulls of several workers reach the servers: its
function is called before each of them, and may let another worker act, wait, or raise an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

from parallel.parameter_server.assignment import SCHEMES, WORKER, Assignment
from parallel.parameter_server.exchange import Exchange
from parallel.parameter_server.messages import Settings, Trace
from parallel.parameter_server.server import Updater
from parallel.world import LoneWorld, World
from runtime.mxnet import mx


class NearServers:
    """MXNet's key-value store of all workers. Not for threads that run at once.

    Attributes:
        arrays: by key.
        before: is called with "push" or "pull" and the number of a bucket, before that is done.
    """

    rank = 0

    def __init__(self, monkeypatch, workers: int, servers: int, **assignment) -> None:
        self.arrays: dict[int, Any] = {}
        self.before: Callable[[str, int], None] = lambda what, bucket: None
        given = {"bucket_elements": 4, **assignment}
        place = (WORKER, "127.0.0.1", 1, "127.0.0.1", "lo")
        self.assignment = Assignment(*place, workers, servers, **given)
        self._updaters: list[Updater] = []
        monkeypatch.setattr(mx.kv, "create", lambda kind: self)

    def worker(
        self, number: int, scheme: str = "dist_async", group: Optional[World] = None, **options
    ) -> Any:
        """Start a worker whose ``weights`` are the servers': 0, 1, 2 ... in two parameters."""
        own = replace(self.assignment, worker=number)
        worker: Any = Exchange(
            SCHEMES[scheme], own, group or LoneWorld(), staleness=None, batch_size=1, **options
        )
        worker.weights = [mx.nd.arange(5), mx.nd.arange(5, 12)]
        worker.start(worker.weights, [1.0, 1.0], momentum=0.0, weight_decay=0.0, version=0)
        return worker

    def init(self, keys, arrays) -> None:
        for key, array in self._each("init", keys, arrays):
            self.arrays.setdefault(key, array.copy())

    def push(self, keys, arrays) -> None:
        for key, array in self._each("push", keys, arrays):
            self._updaters[key * 9973 % len(self._updaters)](key, array.copy(), self.arrays[key])

    def pull(self, keys, out) -> None:
        for key, array in self._each("pull", keys, out):
            array[:] = self.arrays[key]

    def _each(self, what: str, keys, arrays) -> Iterator[tuple[int, Any]]:
        # The shared table has a single key.
        buckets = isinstance(keys, list)
        for number, pair in enumerate(zip(keys, arrays) if buckets else [(keys, arrays)]):
            if buckets:
                self.before(what, number)
            yield pair

    def _send_command_to_servers(self, head: int, body: str) -> None:
        if not self._updaters:
            names = (f"server-{number}" for number in range(self.assignment.num_servers))
            traces = [Trace(self.assignment.trace, name) for name in names]
            self._updaters = [Updater(Settings.decode(body), trace) for trace in traces]

    def _barrier(self) -> None:
        return


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
