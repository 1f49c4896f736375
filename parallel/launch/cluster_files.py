"""The text files that describe a cluster: ``hosts``, ``groups``, ``servers``.

``data_sharding`` has a module of its own. Comments and empty lines are skipped, and lines are
counted so that an error can name the line of a mistake. docs/grouping-sgd.md describes the files to
their authors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple, Optional

from parallel import host_lists
from parallel.host_lists import ListedHost
from runtime import files
from runtime.errors import DataError, did_you_mean

Groups = tuple[tuple[int, ...], ...]
"""The workers of each group."""

_GROUPS_LINE = "the addresses of a group, separated by spaces"
_SERVERS_LINE = "the address of a server and its speed relative to the others"


class WorkerHosts(NamedTuple):
    """The machine of each worker, worker 0 first."""

    addresses: tuple[str, ...]
    """As they are written in ``hosts``; groups, shares and servers refer to them."""
    logins: tuple[str, ...]
    """Destinations of ssh: each address, with ``:port`` if the line has one."""
    notes: tuple[str, ...] = ()
    """Lines for the log: lines of the file that are left out or used again."""


class Line(NamedTuple):
    """The words of a line of a file."""

    number: int
    """Counted from 1."""
    words: list[str]


def read_hosts(path: Path, workers: int) -> WorkerHosts:
    """Read the machine of each worker: ``address``, ``address:port`` or ``address slots=N``.

    As with the tracker of dmlc-core, which MXNet-G uses, the first lines are taken if there are
    more lines than workers, and the lines are used in turn if there are fewer; the port is that of
    the ssh server. A line whose slots are all taken is left out of later turns while others have
    free ones.

    Raises:
        DataError: with the file and the line: it is not one name or IPv4 address.
    """
    lines = host_lists.read_file(path, colon=host_lists.PORT)
    taken = _in_turn(lines, workers)
    notes = []
    used = Counter(line.line for line in taken)
    left_out = [line for line in lines if not used[line.line]]
    if left_out:
        more = f" and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        notes.append(
            f"{path} has {len(lines)} lines for {workers} workers: "
            f"{left_out[0].host} (line {left_out[0].line}){more} at its end have no worker"
        )
    elif len(lines) < workers:
        counts = ", ".join(f"{used[line.line]} on {line.host}" for line in lines)
        notes.append(
            f"{path} has {len(lines)} lines for {workers} workers, which take them in turn: "
            f"{counts}"
        )
    return WorkerHosts(
        tuple(line.host for line in taken),
        tuple(f"{line.host}:{line.port}" if line.port else line.host for line in taken),
        tuple(notes),
    )


def _in_turn(lines: Sequence[ListedHost], workers: int) -> list[ListedHost]:
    """Give each worker a line."""
    taken: list[ListedHost] = []
    counts: Counter[int] = Counter()
    has_end = all(line.slots for line in lines)
    slots = sum(line.slots or 1 for line in lines)
    for line in cycle(lines):
        if len(taken) == workers:
            break
        is_full = line.slots is not None and counts[line.line] >= line.slots
        if not is_full or (has_end and len(taken) >= slots):
            taken.append(line)
            counts[line.line] += 1
    return taken


def read_groups(path: Path, hosts: Sequence[str]) -> Groups:
    """Read the workers of each group: a line for each group, with the addresses of its workers.

    An address with several slots in ``hosts``, the address of each worker, stands as often as it
    has slots, and each time means its next slot; or ``address:slot`` names a slot, counted from 0
    among those of the address, and then all slots of that address are named so.

    Raises:
        DataError: with the file and the line: an address that ``hosts`` does not have, one that is
            in two groups, or one that is in none.
    """
    slots = _Slots(path, hosts)
    groups = tuple(
        tuple(slots.take(word, number) for word in words)
        for number, words in read_lines(path, _GROUPS_LINE)
    )
    slots.check_all_taken()
    return groups


def format_groups(groups: Iterable[Iterable[int]], hosts: Sequence[str]) -> str:
    """Return the text from which ``read_groups`` reads these groups.

    Slots have numbers only where their address is not enough, because MXNet-G knows no numbers.
    """
    texts = [[(worker, hosts[worker]) for worker in group] for group in groups]
    needs_number = {
        address
        for address in hosts
        if [w for w, a in enumerate(hosts) if a == address]
        not in [[w for w, a in group if a == address] for group in texts]
    }
    return "".join(
        " ".join(
            f"{address}:{hosts[:worker].count(address)}" if address in needs_number else address
            for worker, address in group
        )
        + "\n"
        for group in texts
    )


def read_servers(
    path: Path, servers: int, hosts: Sequence[str]
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Read the address and the relative speed of each server, one server a line.

    Args:
        path: the file.
        servers: how many there are.
        hosts: the addresses of the workers; servers run on the same machines.

    Raises:
        DataError: with the file and the line: not an address of a worker and a positive number, or
            too few or many lines.
    """
    found = []
    for number, words in read_lines(path, _SERVERS_LINE):
        here = location(path, number)
        if len(words) != 2:
            raise DataError(f"{here}: {' '.join(words)!r} is not {_SERVERS_LINE}")
        if words[0] not in hosts:
            raise DataError(
                f"{here}: {words[0]!r} is no address of a worker{did_you_mean(words[0], hosts)}; "
                f"they are {', '.join(dict.fromkeys(hosts))}"
            )
        speed = finite(words[1])
        if speed is None or speed <= 0:
            raise DataError(f"{here}: {words[1]!r} is not a speed; give a positive number")
        found.append((words[0], speed))
    if len(found) != servers:
        raise DataError(
            f"{path} has {len(found)} lines, but there are {servers} servers; give it one line "
            f"for each, or -s {len(found)}"
        )
    addresses, speeds = zip(*found)
    return addresses, speeds


def format_servers(addresses: Iterable[str], speeds: Iterable[float]) -> str:
    """The text from which ``read_servers`` reads these servers."""
    return "".join(f"{address} {speed:g}\n" for address, speed in zip(addresses, speeds))


class _Slots:
    """The slots of all addresses, and the line of ``groups`` that takes each of them."""

    def __init__(self, path: Path, hosts: Sequence[str]) -> None:
        self._path, self._hosts = path, hosts
        self._workers: dict[str, list[int]] = {}
        for worker, address in enumerate(hosts):
            self._workers.setdefault(address, []).append(worker)
        self._line_of: dict[int, int] = {}
        self._is_numbered: dict[str, bool] = {}

    def take(self, word: str, line: int) -> int:
        """The worker that a word of a line names."""
        here = location(self._path, line)
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
        # isdecimal accepts digits of all scripts, and int() has a limit on their number.
        if not (slot.isascii() and slot.isdecimal() and len(slot) < 10 and int(slot) < count):
            raise DataError(f"{here}: {slot!r} is no slot of {address}, which has 0 to {count - 1}")
        return self._workers[address][int(slot)]

    def _next(self, here: str, address: str) -> int:
        workers = self._workers[address]
        free = [worker for worker in workers if worker not in self._line_of]
        if free:
            return free[0]
        slots, earlier = len(workers), self._line_of[workers[-1]]
        raise DataError(
            f"{here}: {address!r} stands {slots + 1} times, up to line {earlier} for all of its "
            f"{slots} slots; a worker belongs to one group"
            if slots > 1
            else f"{here}: {address!r} is in the group of line {earlier} already; a worker belongs "
            "to one group"
        )


def read_lines(path: Path, content: str) -> list[Line]:
    """Read the lines that have words; what follows a ``#`` is a comment.

    Args:
        path: the file.
        content: for an error, what a line holds.

    Raises:
        DataError: the file cannot be read, is no text, or has no words.
    """
    lines = list(_with_words(files.read_lines(path, f"lines, each with {content}")))
    if not lines:
        raise DataError(f"{path} is empty; each line holds {content}")
    return lines


def location(path: Path, number: int) -> str:
    """Name a line, counted from 1."""
    return f"{path}, line {number}"


def finite(word: str) -> Optional[float]:
    """Return the number that a word is; None if it is none, or not finite."""
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _with_words(lines: Iterable[str]) -> Iterator[Line]:
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            yield Line(number, words)
