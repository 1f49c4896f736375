"""The text files that describe a cluster: ``hosts``, ``groups``, ``data_sharding``, ``servers``.

Every line of a file counts, so that an error can name the line of a mistake. docs/grouping-sgd.md
describes the files to their authors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Optional

from parallel.parameter_server.assignment import Share
from runtime.errors import DataError, did_you_mean

Groups = tuple[tuple[int, ...], ...]
"""The workers of each group."""

_HOSTS_LINE = "one address, of a worker's slot"
_GROUPS_LINE = "the addresses of a group, separated by spaces"
_SHARES_LINE = "two numbers, start and end of a worker's share of the data"
_SERVERS_LINE = "the address of a server and its speed relative to the others"
# Not "-" first: ssh would take it for an option. No colon: it separates the slot in groups.
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def read_hosts(path: Path, workers: int) -> tuple[str, ...]:
    """Read the address of each worker, one a line, worker 0 first.

    A machine with two slots stands on two lines. The file has as many lines as there are workers:
    the same file with another number of workers would mean other groups and other shares.

    Raises:
        DataError: with the file and the line: not one address on it, or too few or many lines.
    """
    addresses = []
    for number, words in enumerate(_read_lines(path, _HOSTS_LINE), 1):
        if len(words) > 1:
            raise DataError(
                f"{_location(path, number)}: {' '.join(words)!r} is more than one address; a "
                "machine with several slots stands on as many lines"
            )
        if not _ADDRESS.fullmatch(words[0]):
            raise DataError(
                f"{_location(path, number)}: {words[0]!r} is no address; give a name or an IPv4 "
                "address"
            )
        addresses.append(words[0])
    if len(addresses) != workers:
        raise DataError(
            f"{path} has {len(addresses)} lines, but there are {workers} workers; give it one line "
            f"for each, or -n {len(addresses)}"
        )
    return tuple(addresses)


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
        for number, words in enumerate(_read_lines(path, _GROUPS_LINE), 1)
    )
    slots.check_all_taken()
    return groups


def format_groups(groups: Iterable[Iterable[int]], hosts: Sequence[str]) -> str:
    """The text from which ``read_groups`` reads these groups."""
    names = [
        address if hosts.count(address) == 1 else f"{address}:{hosts[:worker].count(address)}"
        for worker, address in enumerate(hosts)
    ]
    return "".join(" ".join(names[worker] for worker in group) + "\n" for group in groups)


def read_shares(path: Path, workers: int) -> tuple[Share, ...]:
    """Read the share of each worker: line k holds start and end of that of worker k, from 0 to 1.

    Together they are the whole, so that every image is read once in an epoch; an end and the start
    that follows it are written alike, digit for digit.

    Raises:
        DataError: with the file and the line: not two numbers from 0 to 1 that rise, too few or
            many lines, shares that overlap, or data that no worker reads.
    """
    shares = [
        _share(words, _location(path, number))
        for number, words in enumerate(_read_lines(path, _SHARES_LINE), 1)
    ]
    if len(shares) != workers:
        raise DataError(
            f"{path} has {len(shares)} lines, but there are {workers} workers; give it one line "
            "for each"
        )
    end, before = 0.0, "the data begins at 0"
    for share, number in sorted((share, number) for number, share in enumerate(shares, 1)):
        here = f"{_location(path, number)} begins at {share.start}"
        if share.start < end:
            raise DataError(f"{here}, but {before}: the shares overlap")
        if share.start > end:
            raise DataError(f"{here}, but {before}: no worker reads the data between")
        end, before = share.end, f"line {number} ends at {share.end}"
    if end < 1:
        raise DataError(f"{path}: {before}, and no worker reads the data from there to 1")
    return tuple(shares)


def format_shares(shares: Iterable[Share]) -> str:
    """The text from which ``read_shares`` reads these shares."""
    return "".join(f"{start!r} {end!r}\n" for start, end in shares)


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
    for number, words in enumerate(_read_lines(path, _SERVERS_LINE), 1):
        here = _location(path, number)
        if len(words) != 2:
            raise DataError(f"{here}: {' '.join(words)!r} is not {_SERVERS_LINE}")
        if words[0] not in hosts:
            raise DataError(
                f"{here}: {words[0]!r} is no address of a worker{did_you_mean(words[0], hosts)}; "
                f"they are {', '.join(dict.fromkeys(hosts))}"
            )
        speed = _finite(words[1])
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
        here = _location(self._path, line)
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


def _share(words: list[str], here: str) -> Share:
    if len(words) != 2:
        raise DataError(f"{here}: {' '.join(words)!r} is not {_SHARES_LINE}")
    start, end = (_number(word, here) for word in words)
    if not 0 <= start < end <= 1:
        raise DataError(
            f"{here}: {' '.join(words)!r} must rise and lie from 0 to 1: the first number is the "
            "start of a share, the second its end"
        )
    return Share(start, end)


def _number(word: str, here: str) -> float:
    number = _finite(word)
    if number is None:
        raise DataError(f"{here}: {word!r} is not a number from 0 to 1")
    return number


def _finite(word: str) -> Optional[float]:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _read_lines(path: Path, content: str) -> list[list[str]]:
    """Read the words of each line; ``content`` says in an error what a line holds.

    Raises:
        DataError: the file cannot be read, is no text, is empty, or has an empty line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is no text file; each line holds {content}") from None
    lines = [line.split() for line in text.splitlines()]
    if not lines:
        raise DataError(f"{path} is empty; each line holds {content}")
    for number, words in enumerate(lines, 1):
        if not words:
            raise DataError(f"{_location(path, number)} is empty; each line holds {content}")
    return lines


def _location(path: Path, number: int) -> str:
    """Name a line, counted from 1."""
    return f"{path}, line {number}"
