"""Classes that are one identity.

Sets that were collected by names have people under two spellings. Their classes' centers are nearer
to each other than those of any two people. Similarity is not transitive: a chain of look-alikes, or
one class of several people, would join hundreds of classes. So two groups of classes become one
only if the centers of *every* two of their classes are near enough (complete linkage), the nearest
first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.clean.labels import Search

# Nearest classes that are looked at for each: an identity in more classes is found from these.
_NEIGHBORS = 16
# Products of blocks and of single rows differ in their last bits.
_ROUNDING = 1e-5


class Merges(NamedTuple):
    """Classes that are one identity.

    Attributes:
        groups: the classes of each group, ascending; the most similar group first.
        cosines: for each group the smallest cosine of the centers of two of its classes.
    """

    groups: list[tuple[int, ...]]
    cosines: list[float]


def find_merges(centers: NDArray[np.float32], merge: float, search: Search) -> Merges:
    """Return the groups of classes whose centers are all as near to each other as ``merge``.

    Args:
        centers: [C, D]; zeros for a class that has none.
        merge: a cosine.
        search: finds the nearest rows of a gallery.
    """
    present = np.flatnonzero(centers.any(axis=1))
    edges: list[tuple[float, int, int]] = []
    for matches in search(centers[present], centers[present], min(_NEIGHBORS, len(present))):
        near = np.argwhere((matches.cosines >= merge) & (matches.rows >= 0))
        for probe, place in near.tolist():
            first, second = matches.first + probe, int(matches.rows[probe, place])
            if first != second:
                pair = sorted((int(present[first]), int(present[second])))
                edges.append((float(matches.cosines[probe, place]), pair[0], pair[1]))
    return _join(sorted(set(edges), key=lambda edge: (-edge[0], edge[1:])), centers, merge)


def _join(
    edges: list[tuple[float, int, int]], centers: NDArray[np.float32], merge: float
) -> Merges:
    """Join groups along edges, the nearest first, where all of one are near to all of the other."""
    group_of: dict[int, list[int]] = {}
    for _, first, second in edges:
        one, other = group_of.setdefault(first, [first]), group_of.setdefault(second, [second])
        if one is other or (centers[one] @ centers[other].T).min() < merge - _ROUNDING:
            continue
        one += other
        for label in other:
            group_of[label] = one
    groups = {tuple(sorted(group)) for group in group_of.values() if len(group) > 1}
    smallest = {}
    for group in groups:
        rows = centers[list(group)]
        smallest[group] = float((rows @ rows.T).min())
    ordered = sorted(groups, key=lambda group: (-smallest[group], group))
    return Merges(ordered, [smallest[group] for group in ordered])
