"""Which server keeps which elements of which parameter.

MXNet's servers keep arrays by key, and many small arrays take longer to exchange than few large
ones. So all parameters are concatenated, those with weight decay first, and the result is cut into
buckets, each a key of the store: where one server's share ends and the next begins, where weight
decay changes, and where a bucket would become too large.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# MXNet: the server of a key is key * 9973 modulo the number of servers.
_PRIME = 9973
LARGEST = 1 << 24
"""Default size of the largest bucket, in elements: while a server updates one bucket, the next one
is sent."""
MOST_ELEMENTS = (1 << 29) - (1 << 10)
"""Elements that MXNet can send under one key together with the tail of a bucket: below 2 GB."""
FEWEST_ELEMENTS = 1 << 10
"""MXNet's keys end at 215,330: enough for the buckets of a network of 220 million parameters."""


class Slice(NamedTuple):
    """The elements ``[start, stop)`` of one parameter, flattened."""

    parameter: int
    start: int
    stop: int


@dataclass(frozen=True)
class Bucket:
    """Slices of parameters that are sent as one array."""

    key: int
    server: int
    decay: float
    """Multiplies weight decay; the same for all slices."""
    slices: tuple[Slice, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return sum(one.stop - one.start for one in self.slices)


def plan(
    sizes: Sequence[int],
    decays: Sequence[float],
    servers: int,
    speeds: Sequence[float] = (),
    largest: int = LARGEST,
) -> tuple[Bucket, ...]:
    """Divide parameters of these sizes and factors of weight decay into buckets.

    Servers get elements in proportion to their speeds, the fastest the first ones; empty: all are
    equal. No bucket has more than ``largest`` elements.
    """
    assert len(sizes) == len(decays) and (not speeds or len(speeds) == servers)
    speeds = speeds or [1.0] * servers
    # Parameters come in the order of the layers: the lowest are on the fastest server.
    fastest = sorted(range(servers), key=lambda server: -speeds[server])
    reached = itertools.accumulate(speeds[server] for server in fastest)
    ends = [round(sum(sizes) * speed / sum(speeds)) for speed in reached]
    order = sorted(range(len(sizes)), key=lambda parameter: -decays[parameter])
    alike = itertools.groupby(order, decays.__getitem__)
    lengths = (sum(sizes[parameter] for parameter in group) for _, group in alike)
    bounds = sorted({0, *ends, *itertools.accumulate(lengths)})
    keys = [keys_of(server, servers) for server in range(servers)]
    buckets = []
    for begin, end in zip(bounds, bounds[1:]):
        server = fastest[bisect.bisect_right(ends, begin)]
        for start in range(begin, end, largest):
            slices = tuple(_slices(order, sizes, start, min(start + largest, end)))
            buckets.append(Bucket(next(keys[server]), server, decays[slices[0].parameter], slices))
    return tuple(buckets)


def keys_of(server: int, servers: int) -> Iterator[int]:
    """The keys that MXNet sends to a server, without end."""
    return (key for key in itertools.count() if key * _PRIME % servers == server)


def table_key(buckets: Sequence[Bucket], servers: int) -> int:
    """The key of the shared table, on the server of the first bucket, which counts staleness."""
    used = {bucket.key for bucket in buckets}
    return next(key for key in keys_of(buckets[0].server, servers) if key not in used)


def _slices(order: Sequence[int], sizes: Sequence[int], start: int, stop: int) -> Iterator[Slice]:
    """The elements ``[start, stop)`` of the parameters, concatenated in an order."""
    begin = 0
    for parameter in order:
        end = begin + sizes[parameter]
        if max(start, begin) < min(stop, end):
            yield Slice(parameter, max(start - begin, 0), min(stop, end) - begin)
        begin = end
