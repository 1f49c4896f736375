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
from collections.abc import Iterable, Sequence
from itertools import chain, cycle, islice
from pathlib import Path
from typing import NamedTuple

from parallel import host_lists
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


class WorkerHosts(NamedTuple):
    """The machine of each worker, worker 0 first."""

    addresses: tuple[str, ...]
    """As they are written in ``hosts``; groups, shares and servers refer to them."""
    logins: tuple[str, ...]
    """Destinations of ssh: each address, with ``:port`` if the line has one."""


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
    slots = [line.slots or workers for line in lines]
    turns = (line for turn in range(max(slots)) for line, own in zip(lines, slots) if turn < own)
    taken = [*islice(chain(turns, cycle(lines)), workers)]
    return WorkerHosts(
        tuple(line.host for line in taken),
        tuple(f"{line.host}:{line.port}" if line.port else line.host for line in taken),
    )


def read_groups(path: Path, hosts: Sequence[str]) -> Groups:
    """Read the workers of each group: a line for each group, with the addresses of its workers.

    An address with several slots in ``hosts``, the address of each worker, stands as often as it
    has slots, and each time means its next slot; or ``address:slot`` names a slot, counted from 0
    among those of the address.

    Raises:
        DataError: with the file and the line: an address that ``hosts`` does not have, one that is
            in two groups, or one that is in none.
    """
    groups: list[tuple[int, ...]] = []
    left = dict(enumerate(hosts))
    for here, words in read_lines(path, _GROUPS_LINE):
        group = []
        for word in words:
            address, colon, slot = word.partition(":")
            workers = _workers_at(address, hosts, here)
            named = {str(number): worker for number, worker in enumerate(workers)}
            free = [worker for worker in workers if worker in left]
            worker = named.get(slot) if colon else next(iter(free), None)
            if worker is None or worker not in left:
                raise DataError(
                    f"{here}: {word!r} is no slot of {address} that is left; it has "
                    f"{len(workers)}, counted from 0, and each belongs to one group"
                )
            del left[worker]
            group.append(worker)
        groups.append(tuple(group))
    for worker, address in left.items():
        raise DataError(
            f"{path}: {address!r} of worker {worker} is in no group; give it to one, or a line of "
            "its own"
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
    generator rounds shares down, or up to more than the whole.

    Args:
        path: the file.
        addresses: the IP address of each worker, by which MXNet numbers it.

    Returns:
        The shares by the number of the worker, which is its place in ``hosts``, and lines for the
        log: which address reads which part, and how much nobody or several workers read.

    Raises:
        DataError: with the file and the line: not two numbers, or too few lines.
    """
    lines, count = read_lines(path, _SHARES_LINE), len(addresses)
    if len(lines) < count:
        raise DataError(
            f"{path} has {len(lines)} lines, but there are {count} workers; give it one line for "
            "each"
        )
    shares: dict[int, Share] = {}
    said = []
    for worker, (here, words) in zip(in_mxnet_order(addresses), lines):
        start, end = shares[worker] = _share(words[:2], here)
        said.append(
            f"worker {worker} on {addresses[worker]} reads {start:.6g} to {end:.6g} of the data "
            f"({here})"
        )
    reached = unread = 0.0
    for start, end in sorted(shares.values()):
        unread += max(0.0, start - reached)
        reached = max(reached, end)
    unread += 1 - reached
    read_again = sum(end - start for start, end in shares.values()) - (1 - unread)
    for part, verb in ((unread, "nobody reads"), (read_again, "several workers read")):
        if part > _ROUNDING:
            said.append(f"warning: {path}: {verb} {100 * part:.3g} % of the data")
    return tuple(shares[worker] for worker in range(count)), said


def format_shares(shares: Sequence[Share], addresses: Sequence[str]) -> str:
    """Return the text from which ``read_shares``, and MXNet-G, read the shares of these workers."""
    ordered = (shares[worker] for worker in in_mxnet_order(addresses))
    return "".join(f"{start!r} {end!r}\n" for start, end in ordered)


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
    """Return the workers at an address; raises an error with its place if there are none."""
    workers = [worker for worker, other in enumerate(hosts) if other == address]
    if not workers:
        raise DataError(
            f"{here}: {address!r} is no address of a worker{did_you_mean(address, hosts)}; "
            f"they are {', '.join(dict.fromkeys(hosts))}"
        )
    return workers


def _share(words: list[str], here: str) -> Share:
    """Read a line; what lies below 0 or above 1 is cut."""
    numbers = [number(word) for word in words]
    if len(numbers) != 2 or not all(map(math.isfinite, numbers)):
        raise DataError(f"{here}: {' '.join(words)!r} is not {_SHARES_LINE}, from 0 to 1")
    start, end = (min(max(one, 0.0), 1.0) for one in numbers)
    return Share(start, max(start, end))
