"""Classes that are one identity.

Sets that were collected by names have people under two spellings. Their classes' centers are nearer
to each other than those of any two people. Similarity is not transitive: a chain of look-alikes, or
one class of several people, would join hundreds of classes. So two groups of classes become one
only if the centers of *every* two of their classes are near enough (complete linkage), the nearest
first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluation.clean.faces import matches_from

Merge = tuple[tuple[int, ...], float]
"""The classes of one identity, ascending, and the smallest cosine of two of their centers."""

# Nearest classes that are looked at for each: an identity in more classes is found from these.
_NEIGHBORS = 16
# Products of blocks and of single rows differ in their last bits.
_ROUNDING = 1e-5


def find_merges(centers: NDArray[np.float32], merge: float) -> list[Merge]:
    """Return the groups of classes whose centers are all as near to each other as ``merge``.

    ``centers`` are [C, D], zeros for a class that has none. The most similar group comes first.
    """
    present = np.flatnonzero(centers.any(axis=1))
    rows = centers[present]
    edges = {
        (-one.cosine, int(present[min(one[:2])]), int(present[max(one[:2])]))
        for one in matches_from(rows, rows, _NEIGHBORS, merge)
        if one.probe != one.found
    }
    group_of: dict[int, list[int]] = {}
    for _, first, second in sorted(edges):
        one, other = group_of.setdefault(first, [first]), group_of.setdefault(second, [second])
        # All of one have to be near to all of the other.
        if one is other or (centers[one] @ centers[other].T).min() < merge - _ROUNDING:
            continue
        one += other
        group_of.update(dict.fromkeys(other, one))
    groups = {tuple(sorted(group)) for group in group_of.values() if len(group) > 1}
    smallest = {group: _smallest_cosine(centers[list(group)]) for group in groups}
    return sorted(smallest.items(), key=lambda one: (-one[1], one[0]))


def _smallest_cosine(rows: NDArray[np.float32]) -> float:
    return float((rows @ rows.T).min())
