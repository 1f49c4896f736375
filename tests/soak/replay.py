"""Computes every staleness of a job again, from the traces of its workers and servers.

A bucket's version is the number of lines that its server wrote for it before; the versions that a
worker pulled are in the worker's own file. So the versions and the staleness in a server's lines
are compared, not trusted. See ``parallel.parameter_server.trace`` for the lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

_MOST_MESSAGES = 10


class _Worker(NamedTuple):
    keys: list[int]
    pushed: list[list[int]]
    """Of each push the versions of all buckets that were pulled before."""


@dataclass
class Replay:
    """The result of a replay; see ``replay``."""

    pushes: int = 0
    """Pushes of all workers, each of all buckets."""
    updates: int = 0
    """Updates of all buckets."""
    largest: int = 0
    """The largest staleness."""
    buckets: int = 0
    uneven: int = 0
    """Pulls in which buckets had different versions: without any, nothing was tested."""
    mismatches: int = 0
    messages: list[str] = field(default_factory=list)
    """Of the first mismatches."""
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _counts: Counter[int] = field(default_factory=Counter)
    _turns: Counter[tuple[int, int]] = field(default_factory=Counter)

    def expect(self, what: str, found: object, wanted: object) -> None:
        """Compare."""
        if found != wanted:
            self.mismatches += 1
            if len(self.messages) < _MOST_MESSAGES:
                self.messages.append(f"{what}: {found}, not {wanted}")

    def read_worker(self, path: Path) -> None:
        """Read what a worker has pulled and pushed."""
        versions: list[int] = []
        for word, *rest in _lines(path):
            numbers = list(map(int, rest))
            if word == "pusher":
                worker = self._workers.setdefault(numbers[0], _Worker(numbers[1:], []))
            elif word == "pull":
                falls = [new for old, new in zip(versions, numbers) if new < old]
                self.expect(f"{path.name}: versions that fell", falls, [])
                self.uneven += len(set(numbers)) > 1
                versions = numbers
            else:
                worker.pushed.append(versions)

    def check_server(self, path: Path) -> None:
        """Compare what a server has applied."""
        for words in _lines(path):
            key, pusher, sent, version, staleness = map(int, words)
            worker, turn = self._workers[pusher], self._turns[pusher, key]
            what = f"bucket {key}, update {self._counts[key] + 1}, push {turn + 1} of {pusher}"
            if turn >= len(worker.pushed):
                self.expect(what, "applied", "pushed")
                continue
            pulled = worker.pushed[turn][worker.keys.index(key)]
            self.expect(f"{what}: sent version", sent, pulled)
            self.expect(f"{what}: version", version, self._counts[key])
            self.expect(f"{what}: staleness", staleness, self._counts[key] - pulled + 1)
            self.largest = max(self.largest, staleness)
            self._counts[key] += 1
            self._turns[pusher, key] += 1

    def count(self, is_complete: bool) -> None:
        """Add up, and compare the numbers of pushes and updates if all pushes were applied."""
        self.pushes = sum(len(worker.pushed) for worker in self._workers.values())
        self.updates, self.buckets = sum(self._counts.values()), len(self._counts)
        for pusher, worker in self._workers.items() if is_complete else ():
            for key in worker.keys:
                what = f"pushes of pusher {pusher} to bucket {key}"
                self.expect(what, self._turns[pusher, key], len(worker.pushed))


def replay(folder: Path, *, is_complete: bool = True) -> Replay:
    """Replay the job of a trace; not complete if a worker was killed."""
    result = Replay()
    for path in sorted(folder.glob("worker-*")):
        result.read_worker(path)
    for path in sorted(folder.glob("server-*")):
        result.check_server(path)
    result.count(is_complete)
    return result


def _lines(path: Path) -> Iterator[list[str]]:
    with path.open() as lines:
        yield from map(str.split, lines)
