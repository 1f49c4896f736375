"""What the command says of a verified set: lines for people, and a table for programs (JSON)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from evaluation.folds import FOLDS, Features
from evaluation.verification import VerificationResult, verify
from evaluation.verification.curves import (
    FARS,
    Curve,
    FarThreshold,
    Pairs,
    Rate,
    area_under,
    equal_error_rate,
    hold_out,
    joined,
    pairs_of,
    roc,
    tar_at,
)
from evaluation.verification.groups import Group, Rates, compare_groups, spread_of

_NONE = "-"


class SetReport:
    """One verified set. Only what is asked for is computed.

    Attributes:
        name: of the set.
        result: accuracy, rates and XNorm by the protocol of ten folds, or of so many.
        pairs: its cosines and folds.
    """

    def __init__(
        self,
        name: str,
        embeddings: Features,
        same: NDArray[np.bool_],
        *,
        xnorm: float,
        folds: int = FOLDS,
    ) -> None:
        self.name = name
        self.result: VerificationResult = verify(embeddings, same, xnorm=xnorm, folds=folds)
        self.pairs: Pairs = pairs_of(embeddings, same, folds)

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
            "xnorm": result.xnorm if math.isfinite(result.xnorm) else None,
            "tar_at_far_over_folds": _by_far(result.tar_at_far),
            "tar_at_far": _by_far({far: tar_at(self.curve, far) for far in FARS}),
            "auc": area_under(self.curve),
            "eer": equal_error_rate(self.curve),
        }


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
        self.groups: list[Group] = (
            [] if groups is None else compare_groups(pairs, groups, self.thresholds)
        )

    def lines(self) -> list[str]:
        """Return what it says to people."""
        lines = threshold_lines(self.name, self.thresholds)
        return lines + group_lines(self.name, self.groups) if self.groups else lines

    def to_json(self) -> dict[str, Any]:
        """Return what it says to programs."""
        table: dict[str, Any] = {"thresholds_for_far": threshold_table(self.thresholds)}
        if self.groups:
            table["by_group"] = group_table(self.groups)
        return table


def compare_sets(reports: Sequence[SetReport], fars: Sequence[float]) -> GroupReport:
    """Return the report of several sets as one, of which each is a group."""
    names = [report.name for report in reports for _ in report.pairs.same]
    return GroupReport("all sets", joined([report.pairs for report in reports]), fars, names)


def roc_lines(name: str, curve: Curve) -> list[str]:
    """Return AUC, EER and a table of TAR at FAR."""
    rates = [tar_at(curve, far) for far in FARS]
    table = [["FAR", *(f"{far:g}" for far in FARS)], ["TAR", *map(_share, rates)]]
    lines = [f"{name}: AUC {area_under(curve):.5f}, EER {equal_error_rate(curve):.4f}"]
    lines += _aligned(table)
    if None in rates:
        lines.append(f"{_NONE}: below one of the {curve.different:,} pairs of two people")
    return lines


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
        lowest, highest = min(found.fold_thresholds), max(found.fold_thresholds)
        lines.append(
            f"{beginning}cosine {found.threshold:.4f} ({lowest:.4f} to {highest:.4f} by nine "
            f"folds), TAR {found.tar:.4f}; on held-out folds FAR "
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
            *_cells(group.rates),
        ]
        for group in groups
    ]
    lines = [f"{name} by group:", *_aligned([header, *table])]
    for heading, accuracies in _kinds_of_accuracy(groups).items():
        spread = spread_of(accuracies)
        if spread is not None:
            ratio = f"{spread.error_ratio:.2f}" if spread.error_ratio else _NONE
            lines.append(
                f"{heading.replace('_', ' ')} over {len(accuracies)} groups: mean "
                f"{spread.mean:.4f}, standard deviation {spread.deviation:.4f}, largest over "
                f"smallest error {ratio}"
            )
    # A FAR without a threshold has been said before.
    fars = [far for far, rates in groups[0].rates_for_far.items() if rates]
    rows = [
        [group.name, *(cell for far in fars for cell in _cells(group.rates_for_far[far]))]
        for group in groups
    ]
    if fars:
        header = ["group", *(f"{rate} for {far:g}" for far in fars for rate in ("FAR", "TAR"))]
        lines += [f"{name} by group, on held-out folds:", *_aligned([header, *rows])]
    if any(_NONE in row for row in table + rows):
        lines.append(f"{_NONE}: too few pairs of one person or of two people to say")
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
            **_rates_table(group.rates),
            "for_far": [
                {"wanted": far, **_rates_table(rates)} for far, rates in group.rates_for_far.items()
            ],
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


def _cells(rates: Optional[Rates]) -> list[str]:
    found = (None, None) if rates is None else rates
    return [_share(one.share if one else None) for one in found]


def _rates_table(rates: Optional[Rates]) -> dict[str, Any]:
    far, tar = (None, None) if rates is None else rates
    return {"far": _counted(far), "tar": _counted(tar)}


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
