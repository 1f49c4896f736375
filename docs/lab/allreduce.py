"""Measures what an Allreduce between ranks costs, and reads it on to 64 of them by a model.

    horovodrun -np 2 python docs/lab/allreduce.py

Exercise 7 of the lab. Three measurements (one small array, many, a large one) give the model's
three numbers: the time until the ranks have agreed to begin, the latency of a message, and the
bandwidth. ``python -m benchmarks.scaling`` measures training on several ranks.

Open MPI 4.1 reduces an array of 256 KB or more by recursive halving and doubling, whatever the
number of ranks up to 4096 (``coll_tuned_decision_fixed.c``; Rabenseifner 2004, Optimization of
Collective Reduction Operations): ``2 log2 n`` messages one after the other, in which a rank sends
``2 (n - 1) / n`` of the array. A small one goes by recursive doubling, ``log2 n`` messages.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from runtime import launchers

SMALL, MANY, LARGE = 1, 64, 1 << 22
ROUNDS = 15
# The gradients of ResNet18, in the 20 arrays that Horovod sends; an update computes half a second.
ARRAYS = [44_700_000 // 20] * 20
COMPUTATION = 0.5


class Link(NamedTuple):
    """Latency and bandwidth of the link between ranks, as Horovod's Allreduce sees them."""

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
            arrays: the bytes of each.
        """
        if ranks == 1:
            return 0.0
        messages = 2 * math.log2(ranks) * len(arrays)
        return self.start + messages * self.latency + sent(ranks, sum(arrays)) / self.bandwidth


class Probe(NamedTuple):
    """The seconds of Allreduces that nothing else delays."""

    ranks: int
    one_small: float
    """Seconds of an Allreduce of one small array."""
    many_small: float
    """Seconds of Allreduces of ``many`` small arrays, one after the other."""
    many: int
    large: float
    """Seconds of an Allreduce of one array of ``large_bytes``."""
    large_bytes: int


def sent(ranks: int, size: float) -> float:
    """The bytes that a rank sends in an Allreduce of ``size`` bytes.

    Each byte goes on once to be summed and once to be known, ``2 (n - 1) / n`` of all: as little as
    possible (Patarasuk and Yuan 2009, Bandwidth Optimal All-reduce Algorithms).
    """
    return 2 * (ranks - 1) / ranks * size


def measure() -> Probe:
    """Time the three, on all ranks together; the quickest rounds, which nothing else delayed."""
    from parallel.world import HorovodWorld, Wire
    from runtime.mxnet import mx

    world = HorovodWorld()
    assert world.size > 1, "start it with horovodrun -np 2"
    small = [mx.nd.zeros((SMALL,)) for _ in range(MANY)]
    large = mx.nd.zeros((LARGE,))

    def reduce_many() -> None:
        # Horovod would send them together if they were scaled alike.
        for number, array in enumerate(small):
            world.allreduce_all([array], f"many.{number}", wire=Wire(predivide_factor=1 + number))

    def seconds(run: Callable[[], None]) -> float:
        measured = []
        for _ in range(ROUNDS):
            world.barrier()
            begin = time.monotonic()
            run()
            mx.nd.waitall()
            measured.append(time.monotonic() - begin)
        return min(measured)

    probe = Probe(
        world.size,
        one_small=seconds(lambda: world.allreduce_all(small[:1], "one")),
        many_small=seconds(reduce_many),
        many=MANY,
        large=seconds(lambda: world.allreduce_all([large], "large")),
        large_bytes=4 * LARGE,
    )
    if world.rank:
        # One rank reports.
        sys.exit()
    return probe


def table(link: Link) -> list[str]:
    """What the model says of more ranks."""
    lines = ["ranks  MB sent  exchange, ms  efficiency"]
    for ranks in (2, 4, 8, 16, 64):
        exchange = link.allreduce(ranks, ARRAYS)
        efficiency = COMPUTATION / (COMPUTATION + exchange)
        megabytes = sent(ranks, sum(ARRAYS)) / 1e6
        lines.append(f"{ranks:5} {megabytes:8.2f} {1e3 * exchange:13.1f} {efficiency:11.3f}")
    return lines


def main() -> None:
    """Measure and read on."""
    launchers.begin_rank(60)
    probe = measure()
    try:
        link = Link.of(probe)
    except ValueError as error:
        sys.exit(f"{error}: other programs keep the processors busy; measure again")
    start, latency = f"{1e3 * link.start:.2f} ms", f"{1e6 * link.latency:.0f} µs"
    print(f"start {start}, latency {latency}, bandwidth {link.bandwidth / 1e9:.2f} GB/s")
    print("\n".join(table(link)))


if __name__ == "__main__":
    main()
