"""What the command says of a verified set: lines for people, and a table for programs (JSON).

It also says whether a network errs more often on some groups of people than on others. The form is
that of Racial Faces in the Wild (Wang et al. 2019): a group's accuracy with a threshold of its own,
and the spread over the groups (Wang and Deng 2020, Mitigating Bias in Face Recognition using
Skewness-Aware Reinforcement Learning). A program in use has one threshold for all, at which a group
can be accepted wrongly ten times as often and still have a good accuracy of its own; so the rates
at the common threshold stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Optional, Union

import numpy as np

from evaluation.verification import VerificationResult, verify
from evaluation.verification.curves import (
    FARS,
    FOLDS,
    Answers,
    Curve,
    FarThreshold,
    Pairs,
    Rate,
    Scores,
    accuracies_of_folds,
    area_under,
    equal_error_rate,
    folds_of,
    hold_out,
    joined,
    rate,
    roc,
    tar_at,
)
from runtime.errors import DataError
from runtime.files import read_lines

_NONE = "-"
_LONGEST_NAME = 60


class SetReport:
    """One verified set. Only what is asked for is computed.

    Attributes:
        name: of the set.
        result: accuracy, rates and XNorm by the protocol of ten folds, or of so many.
        pairs: its cosines and folds.
    """

    def __init__(self, name: str, pairs: Pairs, *, xnorm: float) -> None:
        self.name, self.pairs = name, pairs
        self.result: VerificationResult = verify(pairs, xnorm=xnorm)

    @cached_property
    def curve(self) -> Curve:
        """The ROC over all pairs."""
        return roc(self.pairs.cosines, self.pairs.same)

    @property
    def threshold(self) -> float:
        """The threshold of the accuracy, as a cosine."""
        # Of unit vectors, |a - b|^2 = 2 - 2 a·b.
        return 1 - self.result.threshold / 2

    def to_json(self) -> dict[str, Any]:
        """Return what is known without thresholds and groups."""
        result = self.result
        return {
            "name": self.name,
            "pairs": len(self.pairs.same),
            "pairs_of_one_person": int(self.pairs.same.sum()),
            "pairs_of_two_people": self.curve.different,
            "accuracy": result.accuracy,
            "accuracy_std": result.accuracy_std,
            "threshold_squared_distance": result.threshold,
            "threshold_cosine": self.threshold,
            "xnorm": result.xnorm,
            "tar_at_far_over_folds": _by_far(result.tar_at_far),
            "tar_at_far": _by_far({far: tar_at(self.curve, far) for far in FARS}),
            "auc": area_under(self.curve),
            "eer": equal_error_rate(self.curve),
        }


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


class GroupReport:
    """Thresholds for wanted FARs, and how groups of the pairs that chose them fare with these.

    Attributes:
        name: of the pairs.
        thresholds: the threshold for each FAR; None where the pairs are too few for it.
        groups: a row for each group; none if there are no groups.
    """

    def __init__(
        self,
        name: str,
        pairs: Pairs,
        fars: Sequence[float],
        groups: Optional[Sequence[str]] = None,
    ) -> None:
        """Args: what the attributes say, and ``groups`` with a name for each pair [P]."""
        self.name = name
        self.thresholds = {far: hold_out(pairs, far) for far in fars}
        self.groups = compare_groups(pairs, groups, self.thresholds) if groups else []

    def lines(self) -> list[str]:
        """Return what it says to people."""
        lines = [
            f"{self.name}: FAR {far:g}: {_threshold(far, found)}"
            for far, found in self.thresholds.items()
        ]
        return lines + group_lines(self.name, self.groups) if self.groups else lines

    def to_json(self) -> dict[str, Any]:
        """Return what it says to programs."""
        table: dict[str, Any] = {
            "thresholds_for_far": [
                asdict(found) if found else {"far": far, "threshold_cosine": None}
                for far, found in self.thresholds.items()
            ]
        }
        if self.groups:
            table["by_group"] = {
                "groups": [asdict(group) for group in self.groups],
                "spread": {kind: spread_of(one) for kind, one in _accuracies(self.groups).items()},
            }
        return table


def _threshold(far: float, found: Optional[FarThreshold]) -> str:
    if found is None:
        return (
            f"no threshold, because nine folds have fewer than {math.ceil(1 / far - 1e-6):,} pairs "
            "of two people; take a larger set"
        )
    kept = found.held_out_far
    lowest, highest = min(found.fold_thresholds_cosine), max(found.fold_thresholds_cosine)
    return (
        f"cosine {found.threshold_cosine:.4f} ({lowest:.4f} to {highest:.4f} by nine folds), TAR "
        f"{found.tar:.4f}; on held-out folds FAR {kept.share:.3g} ({kept.accepted:,} of "
        f"{kept.pairs:,}, 95 % interval {kept.low:.2g} to {kept.high:.2g}), TAR "
        f"{found.held_out_tar:.4f}"
    )


def compare_sets(reports: Sequence[SetReport], fars: Sequence[float]) -> GroupReport:
    """Return the report of several sets as one, of which each is a group."""
    names = [report.name for report in reports for _ in report.pairs.same]
    return GroupReport("all sets", joined([report.pairs for report in reports]), fars, names)


def roc_lines(name: str, curve: Curve) -> list[str]:
    """Return AUC, EER and a table of TAR at FAR."""
    rates = [tar_at(curve, far) for far in FARS]
    table = [["FAR", *(f"{far:g}" for far in FARS)], ["TAR", *map(_number, rates)]]
    areas = f"{name}: AUC {area_under(curve):.5f}, EER {equal_error_rate(curve):.4f}"
    return [areas, *aligned(table)]


def group_lines(name: str, groups: Sequence[Group]) -> list[str]:
    """Return a table with a row for each group, and the spread of the accuracies."""
    header = ["group", "pairs", "accuracy", "own accuracy", "own threshold", "FAR", "TAR"]
    table = [
        [
            group.name,
            f"{group.pairs:,}",
            f"{group.accuracy:.4f}",
            _number(group.own_accuracy),
            _number(group.own_threshold_squared_distance, 3),
            *_shares(group),
        ]
        for group in groups
    ]
    lines = [f"{name} by group:", *aligned([header, *table])]
    for kind, accuracies in _accuracies(groups).items():
        spread = spread_of(accuracies)
        if spread is not None:
            lines.append(
                f"{kind.replace('_', ' ')} over {len(accuracies)} groups: mean "
                f"{spread['mean']:.4f}, standard deviation {spread['deviation']:.4f}, largest over "
                f"smallest error {_number(spread['error_ratio'], 2)}"
            )
    fars = [rates.wanted for rates in groups[0].for_far]
    if fars:
        header = ["group", *(f"{rate} for {far:g}" for far in fars for rate in ("FAR", "TAR"))]
        table = [[one.name, *chain.from_iterable(map(_shares, one.for_far))] for one in groups]
        lines += [f"{name} by group, on held-out folds:", *aligned([header, *table])]
    return lines


def _accuracies(groups: Sequence[Group]) -> dict[str, list[float]]:
    own = [group.own_accuracy for group in groups if group.own_accuracy is not None]
    return {"accuracy": [group.accuracy for group in groups], "own_accuracy": own}


def _shares(rates: Union[Group, FarRates]) -> list[str]:
    return [_number(None if one is None else one.share) for one in (rates.far, rates.tar)]


def _by_far(rates: dict[float, Any]) -> dict[str, Any]:
    return {f"{far:g}": value for far, value in rates.items()}


def _number(value: Optional[float], digits: int = 4) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
