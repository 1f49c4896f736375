"""Computes every staleness of a job again, from the traces of its workers and servers.

A bucket's version is the number of lines that its server wrote for it before; the versions that a
worker pulled are in the worker's own file. So the versions and the staleness in a server's lines
are compared, not trusted. See ``parallel.parameter_server.trace`` for the lines.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_MOST_MESSAGES = 10


@dataclass
class Replay:
    """The result of a replay."""

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

    def expect(self, what: str, found: object, wanted: object) -> None:
        """Compare."""
        if found != wanted:
            self.mismatches += 1
            if len(self.messages) < _MOST_MESSAGES:
                self.messages.append(f"{what}: {found}, not {wanted}")


@dataclass
class _Worker:
    keys: list[int]
    pushed: list[list[int]]
    """Of each push the versions of all buckets that were pulled before."""


def replay(folder: Path, *, is_complete: bool = True) -> Replay:
    """Replay a job.

    Args:
        folder: of its trace.
        is_complete: whether all pushes were applied; false if a worker was killed.
    """
    result = Replay()
    workers: dict[int, _Worker] = {}
    for path in sorted(folder.glob("worker-*")):
        _read_worker(path, workers, result)
    result.pushes = sum(len(worker.pushed) for worker in workers.values())
    counts: Counter[int] = Counter()
    turns: Counter[tuple[int, int]] = Counter()
    for path in sorted(folder.glob("server-*")):
        with path.open() as lines:
            for line in lines:
                _check(list(map(int, line.split())), workers, counts, turns, result)
    result.updates, result.buckets = sum(counts.values()), len(counts)
    for pusher, worker in workers.items():
        for key in worker.keys:
            if is_complete:
                what = f"pushes of pusher {pusher} to bucket {key}"
                result.expect(what, turns[pusher, key], len(worker.pushed))
    return result


def _read_worker(path: Path, workers: dict[int, _Worker], result: Replay) -> None:
    versions: list[int] = []
    with path.open() as lines:
        for line in lines:
            word, *rest = line.split()
            numbers = list(map(int, rest))
            if word == "pusher":
                worker = workers.setdefault(numbers[0], _Worker(numbers[1:], []))
            elif word == "pull":
                falls = [new for old, new in zip(versions, numbers) if new < old]
                result.expect(f"{path.name}: versions that fell", falls, [])
                result.uneven += len(set(numbers)) > 1
                versions = numbers
            else:
                worker.pushed.append(versions)


def _check(
    line: list[int],
    workers: dict[int, _Worker],
    counts: Counter[int],
    turns: Counter[tuple[int, int]],
    result: Replay,
) -> None:
    key, pusher, sent, version, staleness = line
    worker, turn = workers[pusher], turns[pusher, key]
    what = f"bucket {key}, update {counts[key] + 1}, push {turn + 1} of pusher {pusher}"
    if turn >= len(worker.pushed):
        result.expect(what, "applied", "pushed")
        return
    pulled = worker.pushed[turn][worker.keys.index(key)]
    result.expect(f"{what}: sent version", sent, pulled)
    result.expect(f"{what}: version", version, counts[key])
    result.expect(f"{what}: staleness", staleness, counts[key] - pulled + 1)
    result.largest = max(result.largest, staleness)
    counts[key] += 1
    turns[pusher, key] += 1
