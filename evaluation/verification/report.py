"""What the command says of a verified set: lines for people, and a table for programs (JSON)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from evaluation.folds import FOLDS, Features, distances_of_pairs
from evaluation.verification import VerificationResult, verify
from evaluation.verification.curves import (
    FARS,
    Curve,
    FarThreshold,
    Rate,
    area_under,
    cosines_of_pairs,
    equal_error_rate,
    hold_out,
    roc,
    tar_at,
)
from evaluation.verification.groups import Group, compare_groups, spread_of

_NONE = "-"


class SetReport:
    """One verified set. Only what is asked for is computed.

    Attributes:
        name: of the set.
        result: accuracy, rates and XNorm by the protocol of ten folds.
        same: whether pair ``i`` shows one person [P].
        cosines: of the pairs [P].
    """

    def __init__(
        self, name: str, embeddings: Features, same: NDArray[np.bool_], *, xnorm: float
    ) -> None:
        self.name, self.same = name, same
        self.result: VerificationResult = verify(embeddings, same, xnorm=xnorm)
        self.cosines = cosines_of_pairs(embeddings)
        self._distances, self._fold = distances_of_pairs(embeddings, same, FOLDS)

    @cached_property
    def curve(self) -> Curve:
        """The ROC over all pairs."""
        return roc(self.cosines, self.same)

    def thresholds(self, fars: Sequence[float]) -> dict[float, Optional[FarThreshold]]:
        """Return the threshold for each FAR; None where the set has too few pairs for it."""
        return {far: hold_out(self.cosines, self.same, self._fold, far) for far in fars}

    def by_group(self, groups: Sequence[str]) -> list[Group]:
        """Return a row for each group; ``groups`` has a name for each pair [P]."""
        return compare_groups(self._distances, self.same, self._fold, groups)

    def to_json(self) -> dict[str, Any]:
        """Return what is known without thresholds and groups."""
        result = self.result
        return {
            "name": self.name,
            "pairs": len(self.same),
            "pairs_of_one_person": int(self.same.sum()),
            "pairs_of_two_people": self.curve.different,
            "accuracy": result.accuracy,
            "accuracy_std": result.accuracy_std,
            "threshold_squared_distance": result.threshold,
            # Of unit vectors, |a - b|^2 = 2 - 2 a·b.
            "threshold_cosine": 1 - result.threshold / 2,
            "xnorm": result.xnorm if math.isfinite(result.xnorm) else None,
            "tar_at_far_over_folds": _by_far(result.tar_at_far),
            "tar_at_far": _by_far({far: tar_at(self.curve, far) for far in FARS}),
            "auc": area_under(self.curve),
            "eer": equal_error_rate(self.curve),
        }


def roc_lines(name: str, curve: Curve) -> list[str]:
    """Return AUC, EER and a table of TAR at FAR."""
    rates = [tar_at(curve, far) for far in FARS]
    table = [["FAR", *(f"{far:g}" for far in FARS)], ["TAR", *map(_share, rates)]]
    heading = f"{name}: AUC {area_under(curve):.5f}, EER {equal_error_rate(curve):.4f}"
    return [heading, *_aligned(table)]


def threshold_lines(name: str, thresholds: dict[float, Optional[FarThreshold]]) -> list[str]:
    """Return a line for each wanted FAR."""
    lines = []
    for far, found in thresholds.items():
        beginning = f"{name}: FAR {far:g}: "
        if found is None:
            lines.append(
                f"{beginning}no threshold, because nine folds have fewer than "
                f"{math.ceil(1 / far - 1e-6):,} pairs of two people; take a larger set"
            )
            continue
        held_out = found.held_out
        lines.append(
            f"{beginning}cosine {found.threshold:.4f}, TAR {found.tar:.4f}; on held-out folds FAR "
            f"{held_out.share:.3g} ({held_out.accepted:,} of {held_out.pairs:,}, 95 % interval "
            f"{held_out.low:.2g} to {held_out.high:.2g}), TAR {found.held_out_tar:.4f}"
        )
    return lines


def group_lines(name: str, groups: Sequence[Group]) -> list[str]:
    """Return a table with a row for each group, and the spread of the accuracies."""
    header = ["group", "pairs", "accuracy", "own accuracy", "own threshold", "FAR", "TAR"]
    table = [
        [
            group.name,
            f"{group.pairs:,}",
            f"{group.accuracy:.4f}",
            _share(group.own_accuracy),
            _NONE if group.own_threshold is None else f"{group.own_threshold:.3f}",
            *(_share(found.share if found else None) for found in (group.far, group.tar)),
        ]
        for group in groups
    ]
    lines = [f"{name} by group:", *_aligned([header, *table])]
    for heading, accuracies in _kinds_of_accuracy(groups).items():
        spread = spread_of(accuracies)
        if spread is not None:
            ratio = f"{spread.error_ratio:.2f}" if spread.error_ratio else _NONE
            lines.append(
                f"spread of {heading.replace('_', ' ')}: standard deviation "
                f"{spread.deviation:.4f}, largest over smallest error {ratio}"
            )
    return lines


def threshold_table(thresholds: dict[float, Optional[FarThreshold]]) -> list[dict[str, Any]]:
    """Return thresholds for wanted FARs as JSON has them."""
    table: list[dict[str, Any]] = []
    for far, found in thresholds.items():
        row: dict[str, Any] = {"far": far, "threshold_cosine": None}
        if found is not None:
            row = {
                "far": far,
                "threshold_cosine": found.threshold,
                "tar": found.tar,
                "fold_thresholds_cosine": list(found.fold_thresholds),
                "held_out_far": _counted(found.held_out),
                "held_out_tar": found.held_out_tar,
            }
        table.append(row)
    return table


def group_table(groups: Sequence[Group]) -> dict[str, Any]:
    """Return groups and their spread as JSON has them."""
    rows = [
        {
            "name": group.name,
            "pairs": group.pairs,
            "accuracy": group.accuracy,
            "own_accuracy": group.own_accuracy,
            "own_threshold_squared_distance": group.own_threshold,
            "far": _counted(group.far),
            "tar": _counted(group.tar),
        }
        for group in groups
    ]
    spreads = {name: spread_of(found) for name, found in _kinds_of_accuracy(groups).items()}
    return {
        "groups": rows,
        "spread": {name: spread and spread._asdict() for name, spread in spreads.items()},
    }


def _kinds_of_accuracy(groups: Sequence[Group]) -> dict[str, list[float]]:
    own = [group.own_accuracy for group in groups if group.own_accuracy is not None]
    return {"accuracy": [group.accuracy for group in groups], "own_accuracy": own}


def _counted(found: Optional[Rate]) -> Optional[dict[str, Any]]:
    return None if found is None else {"share": found.share, **found._asdict()}


def _by_far(rates: dict[float, Any]) -> dict[str, Any]:
    return {f"{far:g}": value for far, value in rates.items()}


def _share(value: Optional[float]) -> str:
    return _NONE if value is None else f"{value:.4f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
