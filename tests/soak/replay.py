"""Computes every staleness of a job again, from the traces of its workers and servers.

A bucket's version is the number of its server's lines before; the versions that a worker pulled are
in the worker's own file. See ``parallel.parameter_server.messages`` for the lines.
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
    updates: int = 0
    largest: int = 0
    buckets: int = 0
    uneven: int = 0
    """Pulls in which buckets had different versions: without any, nothing was tested."""
    mismatches: int = 0
    messages: list[str] = field(default_factory=list)

    def expect(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            self.mismatches += 1
            if len(self.messages) < _MOST_MESSAGES:
                self.messages.append(f"{what}: {found}, not {wanted}")


def replay(folder: Path, *, is_complete: bool = True) -> Replay:
    """Replay the job of a trace; not complete if a worker was killed."""
    result = Replay()
    # For each push of a worker, by its number: the versions of its buckets that it had pulled.
    pushed: dict[int, list[dict[int, int]]] = {}
    for path in sorted(folder.glob("worker-*")):
        _read_worker(path, pushed, result)
    versions: Counter[int] = Counter()
    turns: Counter[tuple[int, int]] = Counter()
    applied = "".join(path.read_text() for path in sorted(folder.glob("server-*")))
    for line in applied.splitlines():
        key, pusher, *said = map(int, line.split())
        turn = turns[pusher, key]
        what = f"bucket {key}, update {versions[key] + 1}, push {turn + 1} of {pusher}"
        if turn >= len(pushed[pusher]):
            result.expect(what, "applied", "pushed")
            continue
        pulled = pushed[pusher][turn][key]
        staleness = versions[key] - pulled + 1
        wanted = {"sent version": pulled, "version": versions[key], "staleness": staleness}
        for (name, number), found in zip(wanted.items(), said):
            result.expect(f"{what}: {name}", found, number)
        result.largest = max(result.largest, said[-1])
        versions[key] += 1
        turns[pusher, key] += 1
    result.pushes = sum(map(len, pushed.values()))
    result.updates, result.buckets = sum(versions.values()), len(versions)
    for pusher, pushes in pushed.items() if is_complete else ():
        for key in pushes[0] if pushes else ():
            what = f"pushes of pusher {pusher} to bucket {key}"
            result.expect(what, turns[pusher, key], len(pushes))
    return result


def _read_worker(path: Path, pushed: dict[int, list[dict[int, int]]], result: Replay) -> None:
    keys: list[int] = []
    versions: list[int] = []
    for line in path.read_text().splitlines():
        word, *rest = line.split()
        numbers = list(map(int, rest))
        if word == "pusher":
            keys = numbers[1:]
            pushes = pushed.setdefault(numbers[0], [])
        elif word == "pull":
            falls = [new for old, new in zip(versions, numbers) if new < old]
            result.expect(f"{path.name}: versions that fell", falls, [])
            result.uneven += len(set(numbers)) > 1
            versions = numbers
        else:
            pushes.append(dict(zip(keys, versions)))
