"""The four schemes of Grouping-SGD on two fast workers and two that are a quarter as fast.

    python docs/lab/schemes.py

Exercise 6 of the lab. Nothing is trained: a queue of events says which group of workers has
finished a step, what it waits for, and how many updates of others came meanwhile. Groups and shares
are computed by the toolkit's own code, as ``python -m parallel.autogroup`` would from measurements.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import numpy as np

from parallel import autogroup

SPEEDS = (4.0, 4.0, 1.0, 1.0)
BATCHES = 400
BOUND = 3


class Outcome(NamedTuple):
    """What an epoch has come to."""

    seconds: float
    updates: int
    staleness: float
    """The mean; a gradient of the newest weights has 1."""


def simulate(
    groups: Sequence[Sequence[int]], steps: Sequence[int], bound: Optional[int] = None
) -> Outcome:
    """Let each group take its steps, each of which waits for its slowest member.

    Args:
        groups: the workers of each group; each makes an update by itself.
        steps: how many each group takes.
        bound: how many steps a group may be ahead of the slowest one; None: any number.
    """
    rng = np.random.default_rng(0)
    done, pulled = [0] * len(groups), [0] * len(groups)
    staleness: list[int] = []
    events: list[tuple[float, int]] = []
    waiting = set(range(len(groups)))
    now = 0.0
    while True:
        busy = [one for one, count in enumerate(done) if count < steps[one]]
        if not busy:
            return Outcome(now, len(staleness), float(np.mean(staleness)))
        slowest = min(done[one] for one in busy)
        for one in sorted(waiting & set(busy)):
            if bound is None or done[one] - slowest <= bound:
                waiting.remove(one)
                # Pulls the weights, and computes on them.
                pulled[one] = len(staleness)
                noise = rng.uniform(0.9, 1.1)
                heapq.heappush(events, (now + noise / min(SPEEDS[w] for w in groups[one]), one))
        now, one = heapq.heappop(events)
        staleness.append(len(staleness) - pulled[one] + 1)
        done[one] += 1
        waiting.add(one)


def run() -> dict[str, Outcome]:
    """One epoch of each scheme."""
    workers = len(SPEEDS)
    alone, equal = [[worker] for worker in range(workers)], [BATCHES // workers] * workers
    groups = autogroup.group(SPEEDS)
    shares = autogroup.shares(groups, SPEEDS)
    parts = [min(shares[one].end - shares[one].start for one in group) for group in groups]
    return {
        "BSP": simulate([range(workers)], equal[:1]),
        "ASP": simulate(alone, equal),
        f"SSP, bound {BOUND}": simulate(alone, equal, BOUND),
        "GSP": simulate(groups, [round(BATCHES * part) for part in parts]),
    }


def main() -> None:
    """Print a row for each scheme."""
    print(f"speeds {SPEEDS}, {BATCHES} batches; groups of GSP: {autogroup.group(SPEEDS)}")
    print("             seconds  updates  staleness")
    for name, one in run().items():
        print(f"{name:12} {one.seconds:7.0f} {one.updates:8} {one.staleness:10.2f}")


if __name__ == "__main__":
    main()
