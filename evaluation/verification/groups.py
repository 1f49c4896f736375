"""Accuracy by group of people: whether a network errs more often on some than on others.

The form is that of Racial Faces in the Wild (Wang et al. 2019): a group's accuracy with a threshold
of its own, and the spread over the groups (Wang and Deng 2020, Mitigating Bias in Face Recognition
using Skewness-Aware Reinforcement Learning). A program in use has one threshold for all, at which
a group can be accepted wrongly ten times as often and still have a good accuracy of its own; so the
rates at the common threshold stand beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np

from evaluation.verification.curves import (
    FOLDS,
    Answers,
    FarThreshold,
    Pairs,
    Rate,
    Scores,
    accuracies_of_folds,
    folds_of,
    rate,
)
from runtime.errors import DataError
from runtime.files import read_lines

_LONGEST_NAME = 60


@dataclass(frozen=True)
class FarRates:
    """The FAR and TAR of a group at the common threshold for a wanted FAR.

    None where there is no such threshold, or no pair of that kind.
    """

    wanted: float
    far: Optional[Rate]
    tar: Optional[Rate]


@dataclass(frozen=True)
class Group:
    """The numbers of one group of pairs, under the names of the JSON output."""

    name: str
    pairs: int
    accuracy: float
    """Share of pairs that are judged correctly with the common thresholds, those of the folds."""
    own_accuracy: Optional[float]
    """Mean over ten folds of the group alone; None if it has too few pairs, or one kind only."""
    own_threshold_squared_distance: Optional[float]
    """Mean of these folds' thresholds."""
    far: Optional[Rate]
    """Accepted pairs of two people, with the common thresholds of the accuracy."""
    tar: Optional[Rate]
    """Accepted pairs of one person."""
    for_far: list[FarRates]


def compare_groups(
    pairs: Pairs, groups: Sequence[str], thresholds: Mapping[float, Optional[FarThreshold]]
) -> list[Group]:
    """Return a row for each group, in the order of their first pairs.

    Args:
        pairs: of all groups.
        groups: the name of each pair's group [P].
        thresholds: for wanted FARs, which all of these pairs have chosen.
    """
    distances, same, fold = pairs.distances, pairs.same, pairs.fold
    accepted = distances < accuracies_of_folds(distances, same, fold)[1][fold]
    accepted_for_far = {
        far: None
        if found is None
        else pairs.cosines >= np.array(found.fold_thresholds_cosine)[fold]
        for far, found in thresholds.items()
    }
    names = np.array(groups)
    rows = []
    for name in dict.fromkeys(groups):
        own = names == name
        rows.append(
            Group(
                name,
                int(own.sum()),
                float((accepted == same)[own].mean()),
                *_alone(distances[own], same[own]),
                *_rates(accepted, same, own),
                [FarRates(far, *_rates(one, same, own)) for far, one in accepted_for_far.items()],
            )
        )
    return rows


def spread_of(accuracies: Sequence[float]) -> Optional[dict[str, Optional[float]]]:
    """Return how far accuracies of groups lie apart; None of fewer than two.

    ``mean`` counts each group the same, ``deviation`` is that of a sample, ``error_ratio`` the
    largest share of errors over the smallest, None where a group has no error.
    """
    if len(accuracies) < 2:
        return None
    errors = 1 - np.array(accuracies)
    ratio = float(errors.max() / errors.min()) if errors.min() > 0 else None
    mean, deviation = float(np.mean(accuracies)), float(errors.std(ddof=1))
    return {"mean": mean, "deviation": deviation, "error_ratio": ratio}


def read_groups(path: Path, pairs: int, target: str) -> list[str]:
    """Read the group of each pair of a set, a line per pair.

    Raises:
        DataError: the file cannot be read, has another number of lines, or a line is no name.
    """
    lines = read_lines(path, "a list of groups (--groups), a line for each pair")
    names = [line.strip() for line in lines]
    for number, name in enumerate(names, 1):
        if not (name.isprintable() and 0 < len(name) <= _LONGEST_NAME):
            raise DataError(
                f"--groups {path}, line {number}: {name!r:.80} is no name of a group; write 1 to "
                f"{_LONGEST_NAME} printable characters"
            )
    if len(names) != pairs:
        raise DataError(
            f"--groups {path} has {len(names):,} lines, and the set {target!r} {pairs:,} pairs; "
            "give a line for each pair, in the order of the set"
        )
    return names


def _alone(distances: Scores, same: Answers) -> tuple[Optional[float], Optional[float]]:
    """Return accuracy and threshold of a group as if it were a set of its own."""
    if len(same) < FOLDS or same.all() or not same.any():
        return None, None
    accuracies, thresholds = accuracies_of_folds(distances, same, folds_of(len(same), FOLDS))
    return float(accuracies.mean()), float(thresholds.mean())


def _rates(
    accepted: Optional[Answers], same: Answers, own: Answers
) -> tuple[Optional[Rate], Optional[Rate]]:
    """Return FAR and TAR of the pairs that are ``own``."""
    if accepted is None:
        return None, None
    different, alike = accepted[own & ~same], accepted[own & same]
    return (rate(different) if len(different) else None, rate(alike) if len(alike) else None)
