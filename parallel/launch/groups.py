"""The file ``groups``: a line for each group, with the addresses of its workers.

    10.0.0.1 10.0.0.2
    10.0.0.3 10.0.0.4

An address with several slots in ``hosts`` stands as often as it has slots, and each time means its
next slot: on one machine, ``127.0.0.1 127.0.0.1`` on two lines are workers 0 and 1, and workers 2
and 3. Where that order does not fit, ``address:slot`` names a slot, counted from 0 among those of
the address; then all of that address have to be named so. The leader of a group is that of its
workers which comes first in ``hosts``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from parallel.launch import lines
from runtime.errors import DataError, did_you_mean

Groups = tuple[tuple[int, ...], ...]
"""The workers of each group."""

_CONTENT = "the addresses of a group, separated by spaces"


def read(path: Path, hosts: Sequence[str]) -> Groups:
    """Read the workers of each group.

    Args:
        path: the file.
        hosts: the address of each worker.

    Raises:
        DataError: with the file and the line: an address that ``hosts`` does not have, one that is
            in two groups, or one that is in none.
    """
    slots = _Slots(path, hosts)
    groups = tuple(
        tuple(slots.take(word, number) for word in words)
        for number, words in enumerate(lines.read(path, _CONTENT), 1)
    )
    slots.check_all_taken()
    return groups


def text(groups: Iterable[Iterable[int]], hosts: Sequence[str]) -> str:
    """Write down groups as ``read`` reads them."""
    names = [
        address if hosts.count(address) == 1 else f"{address}:{hosts[:worker].count(address)}"
        for worker, address in enumerate(hosts)
    ]
    return "".join(" ".join(names[worker] for worker in group) + "\n" for group in groups)


class _Slots:
    """Who has been given to a group, and where."""

    def __init__(self, path: Path, hosts: Sequence[str]) -> None:
        self._path = path
        self._hosts = hosts
        self._workers: dict[str, list[int]] = {}
        for worker, address in enumerate(hosts):
            self._workers.setdefault(address, []).append(worker)
        self._line_of: dict[int, int] = {}
        self._bare: Counter[str] = Counter()
        self._is_numbered: dict[str, bool] = {}

    def take(self, word: str, line: int) -> int:
        """The worker that a word means."""
        here = lines.location(self._path, line)
        address, colon, slot = word.partition(":")
        if address not in self._workers:
            raise DataError(
                f"{here}: {address!r} is no address of a worker"
                f"{did_you_mean(address, self._workers)}; they are {', '.join(self._workers)}"
            )
        if self._is_numbered.setdefault(address, bool(colon)) != bool(colon):
            raise DataError(
                f"{here}: {word!r}, but {address} stands both with the number of its slot and "
                "without; write all of them in one way"
            )
        worker = self._numbered(here, address, slot) if colon else self._next(here, address)
        if worker in self._line_of:
            raise DataError(
                f"{here}: {word!r} is in the group of line {self._line_of[worker]} already; a "
                "worker belongs to one group"
            )
        self._line_of[worker] = line
        return worker

    def check_all_taken(self) -> None:
        """Refuse groups that leave a worker out."""
        for worker, address in enumerate(self._hosts):
            if worker not in self._line_of:
                raise DataError(
                    f"{self._path}: {address!r} of worker {worker} is in no group; give it to one, "
                    "or a line of its own"
                )

    def _numbered(self, here: str, address: str, slot: str) -> int:
        count = len(self._workers[address])
        # isdecimal takes digits of all scripts, and int() has a limit on their number.
        if not (slot.isascii() and slot.isdecimal() and len(slot) < 10 and int(slot) < count):
            raise DataError(f"{here}: {slot!r} is no slot of {address}, which has 0 to {count - 1}")
        return self._workers[address][int(slot)]

    def _next(self, here: str, address: str) -> int:
        workers = self._workers[address]
        taken = self._bare[address]
        if taken == len(workers):
            earlier = self._line_of[workers[-1]]
            raise DataError(
                f"{here}: {address!r} stands {taken + 1} times, up to line {earlier} for all of "
                f"its {taken} slots; a worker belongs to one group"
                if taken > 1
                else f"{here}: {address!r} is in the group of line {earlier} already; a worker "
                "belongs to one group"
            )
        self._bare[address] += 1
        return workers[taken]
