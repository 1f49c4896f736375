"""Report on a verified set: lines for people, and a table for programs (JSON).

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
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

import numpy as np

from evaluation.verification import VerificationResult, verify
from evaluation.verification.curves import (
    FARS,
    FOLDS,
    Answers,
    Curve,
    Pairs,
    Result,
    accuracies_of_folds,
    area_under,
    equal_error_rate,
    folds_of,
    hold_out,
    rate,
    roc,
    tar_at,
)
from runtime.errors import DataError
from runtime.files import read_lines

_NONE = "-"


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

    def to_json(self) -> Result:
        """Return what is known without thresholds and groups."""
        result = self.result
        return {
            "name": self.name,
            "pairs": len(self.pairs.same),
            "pairs_of_one_person": int(self.pairs.same.sum()),
            "pairs_of_two_people": self.curve.different,
            **result.numbers(),
            "threshold_squared_distance": result.threshold,
            # Unit vectors have |a - b|^2 = 2 - 2 a·b.
            "threshold_cosine": 1 - result.threshold / 2,
            "tar_at_far_over_folds": _by_far(result.tar_at_far),
            "tar_at_far": _by_far({far: tar_at(self.curve, far) for far in FARS}),
            "auc": area_under(self.curve),
            "eer": equal_error_rate(self.curve),
        }


def compare_groups(
    pairs: Pairs, groups: Sequence[str], thresholds: Mapping[float, Optional[Result]]
) -> list[Result]:
    """Return the numbers of each group, in the order of their first pairs; JSON has their names.

    ``accuracy``, ``far`` and ``tar`` are by the common thresholds of the accuracy, ``for_far`` has
    the rates at the common thresholds for wanted FARs; ``own_accuracy`` is the mean over ten folds
    of the group alone. None is what too few pairs, or pairs of one kind, cannot say.

    Args:
        pairs: of all groups.
        groups: the name of each pair's group [P].
        thresholds: for wanted FARs, which all of these pairs have chosen.
    """
    same, cosines, distances, fold = pairs
    accepted = distances < accuracies_of_folds(pairs)[1][fold]
    accepted_for_far = {
        far: cosines >= np.array(found["fold_thresholds_cosine"])[fold] if found else None
        for far, found in thresholds.items()
    }
    names, rows = np.array(groups), []
    for name in dict.fromkeys(groups):
        own = names == name
        row = {
            "name": name,
            "pairs": int(own.sum()),
            "accuracy": float((accepted == same)[own].mean()),
            "own_accuracy": _alone(Pairs(same[own], cosines[own], distances[own], fold[own])),
            **_rates(accepted, same, own),
            "for_far": [
                {"wanted": far, **_rates(one, same, own)} for far, one in accepted_for_far.items()
            ],
        }
        rows.append(row)
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
        DataError: the file cannot be read, or has another number of lines.
    """
    lines = read_lines(path, "a list of groups (--groups), a line for each pair")
    if len(lines) != pairs:
        raise DataError(
            f"--groups {path} has {len(lines):,} lines, and the set {target!r} {pairs:,} pairs; "
            "give a line for each pair, in the order of the set"
        )
    return list(map(str.strip, lines))


def _alone(pairs: Pairs) -> Optional[float]:
    """Return the accuracy of a group as if it were a set of its own."""
    count, same = len(pairs.same), pairs.same
    if count < FOLDS or same.all() or not same.any():
        return None
    return float(accuracies_of_folds(pairs._replace(fold=folds_of(count, FOLDS)))[0].mean())


def _rates(accepted: Optional[Answers], same: Answers, own: Answers) -> Result:
    """Return FAR and TAR of the pairs that are ``own``."""
    if accepted is None:
        return {"far": None, "tar": None}
    kinds = {"far": accepted[own & ~same], "tar": accepted[own & same]}
    return {name: rate(kind) if len(kind) else None for name, kind in kinds.items()}


def report_rates(
    name: str, pairs: Pairs, fars: Sequence[float], groups: Optional[Sequence[str]] = None
) -> tuple[list[str], Result]:
    """Return lines for people and a table for programs: the thresholds for FARs, and groups.

    Args:
        name: of the pairs.
        pairs: choose the thresholds, by which each group is judged.
        fars: the wanted ones.
        groups: the name of each pair's group [P].
    """
    thresholds = {far: hold_out(pairs, far) for far in fars}
    lines = [f"{name}: FAR {far:g}: {_threshold(far, found)}" for far, found in thresholds.items()]
    table: Result = {
        "thresholds_for_far": [
            found or {"far": far, "threshold_cosine": None} for far, found in thresholds.items()
        ]
    }
    if groups:
        rows = compare_groups(pairs, groups, thresholds)
        accuracies = {
            kind: [row[kind] for row in rows if row[kind] is not None]
            for kind in ("accuracy", "own_accuracy")
        }
        spread = {kind: spread_of(each) for kind, each in accuracies.items()}
        lines += [f"{name} by group:", *group_lines(rows)]
        lines += [
            f"{kind.replace('_', ' ')} over {len(accuracies[kind])} groups: mean "
            f"{found['mean']:.4f}, standard deviation {found['deviation']:.4f}, largest over "
            f"smallest error {_number(found['error_ratio'], 2)}"
            for kind, found in spread.items()
            if found is not None
        ]
        table["by_group"] = {"groups": rows, "spread": spread}
    return lines, table


def report_sets(reports: Sequence[SetReport], fars: Sequence[float]) -> tuple[list[str], Result]:
    """Return ``report_rates`` of several sets as one, of which each is a group.

    Pairs that are in a fold of their set are in that one of all.
    """
    names = [report.name for report in reports for _ in report.pairs.same]
    pairs = Pairs(*map(np.concatenate, zip(*(report.pairs for report in reports))))
    return report_rates("all sets", pairs, fars, names)


def _threshold(far: float, found: Optional[Result]) -> str:
    if found is None:
        return (
            f"no threshold, because nine folds have fewer than {math.ceil(1 / far - 1e-6):,} pairs "
            "of two people; take a larger set"
        )
    chosen, kept = found["fold_thresholds_cosine"], found["held_out_far"]
    return (
        f"cosine {found['threshold_cosine']:.4f} ({min(chosen):.4f} to {max(chosen):.4f} by nine "
        f"folds), TAR {found['tar']:.4f}; on held-out folds FAR {kept['share']:.3g} "
        f"({kept['accepted']:,} of {kept['pairs']:,}, 95 % interval {kept['low']:.2g} to "
        f"{kept['high']:.2g}), TAR {found['held_out_tar']:.4f}"
    )


def roc_lines(name: str, curve: Curve) -> list[str]:
    """Return AUC, EER and a table of TAR at FAR."""
    rates = [tar_at(curve, far) for far in FARS]
    table = [["FAR", *(f"{far:g}" for far in FARS)], ["TAR", *map(_number, rates)]]
    areas = f"{name}: AUC {area_under(curve):.5f}, EER {equal_error_rate(curve):.4f}"
    return [areas, *aligned(table)]


def group_lines(groups: Sequence[Result]) -> list[str]:
    """Return a table with a row for each group."""
    fars = ["", *(f" for {one['wanted']:g}" for one in groups[0]["for_far"])]
    rates = [f"{rate}{far}" for far in fars for rate in ("FAR", "TAR")]
    table = [["group", "pairs", "accuracy", "own accuracy", *rates]]
    for one in groups:
        found = [row[kind] for row in (one, *one["for_far"]) for kind in ("far", "tar")]
        numbers = [
            one["accuracy"],
            one["own_accuracy"],
            *(each and each["share"] for each in found),
        ]
        table.append([one["name"], f"{one['pairs']:,}", *map(_number, numbers)])
    return aligned(table)


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
