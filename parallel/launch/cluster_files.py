"""The text files that describe a cluster: ``hosts``, ``groups``, ``servers``, ``data_sharding``.

Comments and empty lines are skipped, and lines are counted so that an error can name the line of a
mistake. docs/grouping-sgd.md describes the files to their authors.

Line k of ``data_sharding`` is for the worker that has number k in MXNet-G. MXNet numbers workers by
their addresses, compared as text, in descending order: ``10.0.0.9`` comes before ``10.0.0.10``, and
that before ``10.0.0.1``. Here worker k is that of line k of ``hosts``, so shares change places when
they are read and written.
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
from parallel.parameter_server.assignment import Share
from runtime import files
from runtime.errors import DataError, did_you_mean

Groups = tuple[tuple[int, ...], ...]
"""The workers of each group."""

_GROUPS_LINE = "the addresses of a group, separated by spaces"
_SERVERS_LINE = "the address of a server and its speed relative to the others"
_SHARES_LINE = "two numbers, start and end of a worker's share of the data"
# Sums of decimal fractions such as 0.1 + 0.2 differ by less than this from what they mean.
_ROUNDING = 1e-9
# The generator of MXNet-G rounds each share to this; their sum is wrong by as much for each worker,
# and the last shares may be below zero by it.
_HUNDREDTH = 0.01
_MOST_NAMED = 3


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


def in_mxnet_order(addresses: Sequence[str]) -> list[int]:
    """Return workers in the order of MXNet's numbers: by address, as text, descending.

    MXNet numbers the workers of one address by ports that are known only while it runs; here they
    come in the order of ``hosts``.
    """
    return sorted(range(len(addresses)), key=lambda worker: addresses[worker], reverse=True)


def read_shares(path: Path, addresses: Sequence[str]) -> tuple[tuple[Share, ...], list[str]]:
    """Read the share of each worker: line k has start and end, from 0 to 1, for MXNet's worker k.

    Like MXNet-G, this reads the first two words of a line, and accepts shares that leave some of
    the data to nobody or give it to several workers, and lines beyond the last worker: its
    generator rounds shares down, or up to more than the whole. Warnings say how much of the data
    that is.

    Args:
        path: the file.
        addresses: the IP address of each worker, by which MXNet numbers it.

    Returns:
        The shares by the number of the worker, which is its place in ``hosts``, and lines for the
        log: which address reads which part, and warnings.

    Raises:
        DataError: with the file and the line: not two numbers from 0 to 1, or too few lines.
    """
    lines, count = read_lines(path, _SHARES_LINE), len(addresses)
    if len(lines) < count:
        raise DataError(
            f"{path} has {len(lines)} lines, but there are {count} workers; give it one line for "
            "each"
        )
    slack = _ROUNDING + _HUNDREDTH * len(lines)
    shares = [_share(words[:2], here, slack) for here, words in lines]
    of_worker = dict(zip(in_mxnet_order(addresses), shares))
    said = [
        f"worker {worker} on {addresses[worker]} reads {start:.6g} to {end:.6g} of the data "
        f"({here})"
        for (worker, (start, end)), (here, _) in zip(of_worker.items(), lines)
    ]
    said += _uneven(path, shares[:count])
    if len(lines) > count:
        said.append(f"warning: {path}: lines after those of the {count} workers are not used")
    longer = next((here for here, words in lines if len(words) > 2), None)
    if longer is not None:
        said.append(f"warning: {longer}: what follows the two numbers is not used")
    return tuple(of_worker[worker] for worker in range(count)), said


def format_shares(shares: Sequence[Share], addresses: Sequence[str]) -> str:
    """Return the text from which ``read_shares``, and MXNet-G, read the shares of these workers."""
    ordered = (shares[worker] for worker in in_mxnet_order(addresses))
    return "".join(f"{start!r} {end!r}\n" for start, end in ordered)


def unread_in_groups(shares: Sequence[Share], groups: Iterable[Sequence[int]]) -> list[str]:
    """Say which groups leave data unread because their workers' shares differ in size.

    The workers of a group take equally many steps, as many as the smallest of their shares has
    images for.
    """
    said = []
    for group in groups:
        sizes = [shares[worker].end - shares[worker].start for worker in group]
        unread = sum(sizes) - len(group) * min(sizes)
        if unread > _ROUNDING:
            workers = ", ".join(map(str, group))
            said.append(
                f"warning: workers {workers} take equally many steps, as many as the share of "
                f"worker {group[sizes.index(min(sizes))]} has images for: {_percent(unread)} of "
                "the data, the rest of their shares, is not read"
            )
    return said


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


def _share(words: list[str], here: str, slack: float) -> Share:
    """Read a line; what lies beyond 1 by no more than the slack is cut."""
    if len(words) != 2:
        raise DataError(f"{here}: {' '.join(words)!r} is not {_SHARES_LINE}")
    for word in words:
        if not 0 <= number(word) <= 1 + slack:
            raise DataError(f"{here}: {word!r} is not a number from 0 to 1")
    start, end = map(float, words)
    if start > end and end < 1 - slack:
        raise DataError(
            f"{here}: {' '.join(words)!r} must rise: the first number is the start of a share, the "
            "second its end"
        )
    start, end = min(start, 1.0), min(end, 1.0)
    return Share(start, max(start, end))


def _uneven(path: Path, shares: Sequence[Share]) -> list[str]:
    """Say how much of the data nobody reads, and how much several workers read."""
    edges = sorted({0.0, 1.0, *(edge for share in shares for edge in share)})
    found: dict[str, list[Share]] = {"nobody reads": [], "several workers read": []}
    for start, end in zip(edges, edges[1:]):
        readers = sum(share.start <= start and end <= share.end for share in shares)
        if readers != 1 and end - start > _ROUNDING:
            found["several workers read" if readers else "nobody reads"].append(Share(start, end))
    said = []
    for verb, parts in found.items():
        if parts:
            size = sum(end - start for start, end in parts)
            ranges = ", ".join(f"{start:.6g} to {end:.6g}" for start, end in parts[:_MOST_NAMED])
            more = ", ..." if len(parts) > _MOST_NAMED else ""
            said.append(f"warning: {path}: {verb} {_percent(size)} of the data: {ranges}{more}")
    return said


def _percent(part: float) -> str:
    return f"{100 * part:.3g} %"
