"""What an update costs on more workers than can be measured: latency, and bytes over bandwidth.

Open MPI 4.1 reduces an array of 256 KB or more by recursive halving and doubling, whatever the
number of ranks up to 4096 (``coll_tuned_decision_fixed.c``; Rabenseifner 2004, Optimization of
Collective Reduction Operations): ``2 log2 n`` messages one after the other, in which a rank sends
``2 (n - 1) / n`` of the array. A small one goes by recursive doubling, ``log2 n`` messages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Link(NamedTuple):
    """What connects ranks, as an Allreduce of Horovod over it sees it."""

    start: float
    """Seconds until the ranks have agreed to begin: Horovod looks for work once in a cycle."""
    latency: float
    """Seconds of one message, without its bytes."""
    bandwidth: float
    """Bytes per second that a rank sends, receives and adds."""

    @classmethod
    def of(cls, probe: Probe) -> Link:
        """From Allreduces of known sizes.

        Raises:
            ValueError: the large array took no longer than the small one.
        """
        steps = math.log2(probe.ranks)
        latency = max(0.0, (probe.many_small - probe.one_small) / ((probe.many - 1) * steps))
        start = max(0.0, probe.one_small - steps * latency)
        sending = probe.large - start - 2 * steps * latency
        if sending <= 0:
            raise ValueError(f"{probe} does not tell what bytes cost")
        return cls(start, latency, sent(probe.ranks, probe.large_bytes) / sending)

    def allreduce(self, ranks: int, arrays: Sequence[int]) -> float:
        """Seconds of an Allreduce of arrays, one after the other.

        Args:
            ranks: how many.
            arrays: the bytes of each, as ``fused`` returns them.
        """
        if ranks == 1:
            return 0.0
        messages = 2 * math.log2(ranks) * len(arrays)
        return self.start + messages * self.latency + sent(ranks, sum(arrays)) / self.bandwidth


class Probe(NamedTuple):
    """The seconds of Allreduces that nothing else delays."""

    ranks: int
    one_small: float
    """Of one small array."""
    many_small: float
    """Of ``many`` small arrays, one after the other."""
    many: int
    large: float
    """Of one array of ``large_bytes``."""
    large_bytes: int


def sent(ranks: int, size: float) -> float:
    """The bytes that a rank sends in an Allreduce of ``size`` bytes.

    Each byte goes on once to be summed and once to be known, ``2 (n - 1) / n`` of all: as little as
    possible (Patarasuk and Yuan 2009, Bandwidth Optimal All-reduce Algorithms).
    """
    return 2 * (ranks - 1) / ranks * size


def fused(sizes: Sequence[int], threshold: int) -> list[int]:
    """The bytes of what Horovod sends at once, if all arrays are ready.

    Neighbors go together up to ``HOROVOD_FUSION_THRESHOLD``; a larger array goes alone, where it
    is.
    """
    together: list[int] = []
    for size in sizes:
        if together and together[-1] + size <= threshold:
            together[-1] += size
        else:
            together.append(size)
    return together
