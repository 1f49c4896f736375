"""The lines of a plan, of faces or of classifiers: sizes and times, and how each is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from training.plan.calibration import CollectiveRates
from training.plan.keys import Cell

COMPUTED, MEASURED, ASSUMED = "computed", "measured", "assumed"
FLOAT = 4
"""Bytes of a float32."""


class Item(NamedTuple):
    """A line of the plan: a key that does not change, words, a size, and how it is known."""

    key: str
    label: str
    num_bytes: int
    basis: str


class Duration(NamedTuple):
    """A line of the plan: a key that does not change, words, seconds, and how they are known."""

    key: str
    label: str
    seconds: float
    basis: str


class BackboneBytes(NamedTuple):
    """Bytes of the float32 parameters of a backbone: all, and those that are trained."""

    all: int
    trained: int


def total(items: Sequence[Item]) -> int:
    """The sum of the items."""
    return sum(item.num_bytes for item in items)


def seconds(durations: Sequence[Duration]) -> float:
    """The sum; reading overlaps the rest and counts only as far as it takes longer."""
    reading = sum(one.seconds for one in durations if one.key == "reading")
    rest = sum(one.seconds for one in durations if one.key != "reading")
    return max(rest, reading)


def communication(
    sizes: Mapping[str, int], world_size: int, rates: CollectiveRates, cell: Cell
) -> Duration:
    """A collective's start grows with the logarithm of the ranks, its bytes with those sent."""
    assert cell.ranks > 1
    steps = math.log2(world_size) / math.log2(cell.ranks)
    share = (world_size - 1) / world_size
    seconds = 0.0
    for name, size in sizes.items():
        passes = 1 if name.startswith("allgather") else 2
        seconds += rates.base_seconds * steps + passes * share * size / rates.sent_bytes
    basis = MEASURED if world_size == cell.ranks else ASSUMED
    return Duration("communication", "collectives", seconds, basis)
