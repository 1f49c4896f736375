"""Measures what an Allreduce between ranks costs, and reads it on to 64 of them by a model.

    horovodrun -np 2 python docs/lab/allreduce.py

Exercise 7 of the lab. Three measurements (one small array, many, a large one) give the model's
three numbers: the time until the ranks have agreed to begin, the latency of a message, and the
bandwidth. ``benchmarks/scaling_model.py`` has the model, ``python -m benchmarks.scaling`` the long
form of this.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.scaling_model import Link, Probe, sent
from runtime import launchers

SMALL, MANY, LARGE = 1, 64, 1 << 22
ROUNDS = 15
# The gradients of ResNet18, in the 20 arrays that Horovod sends; an update computes half a second.
ARRAYS = [44_700_000 // 20] * 20
COMPUTATION = 0.5


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
