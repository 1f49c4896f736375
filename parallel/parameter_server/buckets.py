"""Which server keeps which part of which parameter.

MXNet's servers keep arrays by key, and an exchange of many small arrays takes longer than one of
few large ones. So the parameters, those that decay first, are laid end to end and the line is cut:
at the servers' shares of it, where decay ends, and before a piece becomes too large. Every piece is
a bucket, a key of the store.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# MXNet: the server of a key is key * 9973 modulo the number of servers.
_PRIME = 9973
LARGEST = 1 << 24
"""Elements of the largest bucket, unless the user wants another one: while a server updates one
bucket, the next one travels."""
MOST_ELEMENTS = (1 << 29) - (1 << 10)
"""Elements that MXNet can send under one key, with what stands at its end: below 2 GB."""
FEWEST_ELEMENTS = 1 << 10
"""MXNet's keys end at 215,330: networks of up to 220 million parameters have as many buckets."""


class Part(NamedTuple):
    """The elements ``[start, stop)`` of one parameter, flattened."""

    parameter: int
    start: int
    stop: int


@dataclass(frozen=True)
class Bucket:
    """Parts that travel as one array."""

    key: int
    server: int
    decay: float
    """What weight decay is multiplied by; the same for all its parts."""
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return sum(part.stop - part.start for part in self.parts)


def plan(
    sizes: Sequence[int],
    decays: Sequence[float],
    servers: int,
    speeds: Sequence[float] = (),
    largest: int = LARGEST,
) -> tuple[Bucket, ...]:
    """Lay parameters into buckets.

    Args:
        sizes: elements of each parameter.
        decays: what weight decay is multiplied by for each parameter.
        servers: how many.
        speeds: of the servers, whose elements are in proportion to them; left out, all are equal.
        largest: elements of the largest bucket.
    """
    assert len(sizes) == len(decays) and (not speeds or len(speeds) == servers)
    order = sorted(range(len(sizes)), key=lambda parameter: -decays[parameter])
    cuts = _cuts([sizes[parameter] for parameter in order], speeds or [1.0] * servers)
    buckets: list[Bucket] = []
    keys = [keys_of(server, servers) for server in range(servers)]
    for server, line in enumerate(_pieces(order, sizes, cuts)):
        for decay, run in itertools.groupby(line, lambda part: decays[part.parameter]):
            for parts in _limited(run, largest):
                buckets.append(Bucket(next(keys[server]), server, decay, parts))
    return tuple(buckets)


def keys_of(server: int, servers: int) -> Iterator[int]:
    """The keys that MXNet sends to a server, without end."""
    return (key for key in itertools.count() if key * _PRIME % servers == server)


def board_key(buckets: Sequence[Bucket], servers: int) -> int:
    """A key beside the first bucket: its server sees pushes, and can say how stale they were."""
    used = {bucket.key for bucket in buckets}
    return next(key for key in keys_of(buckets[0].server, servers) if key not in used)


def _cuts(sizes: Sequence[int], speeds: Sequence[float]) -> list[int]:
    """Where each server's part of the line ends."""
    whole = sum(speeds)
    return [round(sum(sizes) * total / whole) for total in itertools.accumulate(speeds)]


def _pieces(
    order: Sequence[int], sizes: Sequence[int], cuts: Sequence[int]
) -> Iterator[list[Part]]:
    """The parts of each server."""
    places = list(itertools.accumulate((sizes[parameter] for parameter in order), initial=0))
    for first, last in zip([0, *cuts], cuts):
        yield [
            Part(parameter, max(first - begin, 0), min(last, end) - begin)
            for parameter, begin, end in zip(order, places, places[1:])
            if max(first, begin) < min(last, end)
        ]


def _limited(parts: Iterator[Part], largest: int) -> Iterator[tuple[Part, ...]]:
    """Cut a run of parts before it becomes larger than ``largest``."""
    bucket: list[Part] = []
    room = largest
    for part in parts:
        start = part.start
        while start < part.stop:
            stop = min(part.stop, start + room)
            bucket.append(Part(part.parameter, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield tuple(bucket)
                bucket, room = [], largest
    if bucket:
        yield tuple(bucket)
