"""The text files that describe a cluster: ``hosts``, ``groups``, ``servers``.

``data_sharding`` has a module of its own. Comments and empty lines are skipped, and lines are
counted so that an error can name the line of a mistake. docs/grouping-sgd.md describes the files to
their authors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

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
    note: str = ""
    """A line for the log where lines of the file are left out or used again."""


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
    slots = sum(line.slots or math.inf for line in lines)
    taken: list[ListedHost] = []
    used: Counter[int] = Counter()
    for line in cycle(lines):
        if len(taken) == workers:
            break
        if used[line.line] < (line.slots or math.inf) or len(taken) >= slots:
            taken.append(line)
            used[line.line] += 1
    counts = ", ".join(f"{used[line.line]} on {line.host}" for line in lines)
    note = f"{path} has {len(lines)} lines for {workers} workers: {counts}"
    return WorkerHosts(
        tuple(line.host for line in taken),
        tuple(f"{line.host}:{line.port}" if line.port else line.host for line in taken),
        note if len(lines) != workers else "",
    )


def read_groups(path: Path, hosts: Sequence[str]) -> Groups:
    """Read the workers of each group: a line for each group, with the addresses of its workers.

    An address with several slots in ``hosts``, the address of each worker, stands as often as it
    has slots, and each time means its next slot; or ``address:slot`` names a slot, counted from 0
    among those of the address, and then all slots of that address are named so.

    Raises:
        DataError: with the file and the line: an address that ``hosts`` does not have, one that is
            in two groups, or one that is in none.
    """
    place_of: dict[int, str] = {}
    is_numbered: dict[str, bool] = {}
    groups = []
    for here, words in read_lines(path, _GROUPS_LINE):
        group = []
        for word in words:
            address, colon, slot = word.partition(":")
            workers = _workers_at(address, hosts, here)
            if is_numbered.setdefault(address, bool(colon)) != bool(colon):
                raise DataError(
                    f"{here}: {word!r}, but {address} stands both with the number of its slot and "
                    "without; write all of them in one way"
                )
            if colon and slot not in map(str, range(len(workers))):
                raise DataError(
                    f"{here}: {slot!r} is no slot of {address}, which has 0 to {len(workers) - 1}"
                )
            free = (worker for worker in workers if worker not in place_of)
            worker = workers[int(slot)] if colon else next(free, workers[-1])
            if worker in place_of:
                _, _, line = place_of[worker].rpartition(", ")
                raise DataError(
                    f"{here}: {word!r} is in the group of {line} already; {address} has "
                    f"{len(workers)} slots, and each belongs to one group"
                )
            place_of[worker] = here
            group.append(worker)
        groups.append(tuple(group))
    for worker, address in enumerate(hosts):
        if worker not in place_of:
            raise DataError(
                f"{path}: {address!r} of worker {worker} is in no group; give it to one, or a line "
                "of its own"
            )
    return tuple(groups)


def format_groups(groups: Iterable[Iterable[int]], hosts: Sequence[str]) -> str:
    """Return the text from which ``read_groups`` reads these groups.

    Slots have numbers only where their address is not enough, because MXNet-G knows no numbers.
    """
    groups = [list(group) for group in groups]

    def needs_number(address: str) -> bool:
        own = [worker for worker, other in enumerate(hosts) if other == address]
        return own not in [[worker for worker in group if worker in own] for group in groups]

    def word(worker: int) -> str:
        address = hosts[worker]
        slot = hosts[:worker].count(address)
        return f"{address}:{slot}" if needs_number(address) else address

    return "".join(f"{' '.join(map(word, group))}\n" for group in groups)


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
    addresses, speeds = [], []
    for here, words in read_lines(path, _SERVERS_LINE):
        if len(words) != 2:
            raise DataError(f"{here}: {' '.join(words)!r} is not {_SERVERS_LINE}")
        _workers_at(words[0], hosts, here)
        speed = number(words[1])
        if not 0 < speed < math.inf:
            raise DataError(f"{here}: {words[1]!r} is not a speed; give a positive number")
        addresses.append(words[0])
        speeds.append(speed)
    if len(speeds) != servers:
        raise DataError(
            f"{path} has {len(speeds)} lines, but there are {servers} servers; give it one line "
            f"for each, or -s {len(speeds)}"
        )
    return tuple(addresses), tuple(speeds)


def format_servers(addresses: Iterable[str], speeds: Iterable[float]) -> str:
    """The text from which ``read_servers`` reads these servers."""
    return "".join(f"{address} {speed:g}\n" for address, speed in zip(addresses, speeds))


def read_lines(path: Path, content: str) -> list[tuple[str, list[str]]]:
    """Read the lines that have words; what follows a ``#`` is a comment.

    Args:
        path: the file.
        content: for an error, what a line holds.

    Returns:
        For each line its place, ``FILE, line N``, and its words.

    Raises:
        DataError: the file cannot be read, is no text, or has no words.
    """
    texts = enumerate(files.read_lines(path, f"lines, each with {content}"), 1)
    split = ((f"{path}, line {line}", text.partition("#")[0].split()) for line, text in texts)
    lines = [(here, words) for here, words in split if words]
    if not lines:
        raise DataError(f"{path} is empty; each line holds {content}")
    return lines


def number(word: str) -> float:
    """Return the number that a word is; NaN if it is none."""
    try:
        return float(word)
    except ValueError:
        return math.nan


def _workers_at(address: str, hosts: Sequence[str], here: str) -> list[int]:
    """The workers at an address; an error with the place of the address if there are none."""
    workers = [worker for worker, other in enumerate(hosts) if other == address]
    if not workers:
        raise DataError(
            f"{here}: {address!r} is no address of a worker{did_you_mean(address, hosts)}; "
            f"they are {', '.join(dict.fromkeys(hosts))}"
        )
    return workers
