"""What the command prints, as tables in the form of publications, and writes as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from evaluation.ijb.identification import FALSE_ALARM_RATES, RANKS, Identification
from evaluation.ijb.verification import FALSE_ACCEPT_RATES, Verification

_RANKS = [f"rank-{rank}" for rank in RANKS]


def _shares(one: Identification) -> list[float]:
    """Return the share of the mated probes within each rank."""
    return [count / one.mated for count in one.ranks]


def _means(galleries: Sequence[Identification]) -> tuple[list[float], list[float]]:
    """Return for ``RANKS`` the share of all mated probes, and the mean of the galleries' rates."""
    mated = sum(one.mated for one in galleries)
    return (
        [sum(counts) / mated for counts in zip(*(one.ranks for one in galleries))],
        [math.fsum(rates) / len(galleries) for rates in zip(*(one.rates for one in galleries))],
    )


def verification_table(name: str, found: Verification) -> str:
    """Return the true accept rates in percent, in the form of InsightFace's table."""
    heading = ["TAR at FAR", *(f"{far:g}" for far in FALSE_ACCEPT_RATES), "AUC"]
    return _table(heading, [[name, *(rate.true_accept_rate for rate in found.rates), found.area]])


def identification_table(galleries: Mapping[str, Identification]) -> str:
    """Return the rates of each gallery and their mean, in percent."""
    heading = ["gallery", "templates", "mated", "others", *_RANKS]
    heading += [f"TPIR at FPIR {rate:g}" for rate in FALSE_ALARM_RATES]
    rows: list[Sequence[Any]] = []
    for name, one in galleries.items():
        counts = [f"{count:,}" for count in (one.templates, one.mated, one.strangers)]
        rows.append([name, *counts, *_shares(one), *one.rates])
    ranks, rates = _means([*galleries.values()])
    return _table(heading, [*rows, ["mean", "", "", "", *ranks, *rates]])


def as_json(
    found: Optional[Verification], galleries: Mapping[str, Identification]
) -> dict[str, Any]:
    """Return the results as values of JSON; shares, not percent."""
    written: dict[str, Any] = {}
    if found:
        written["1:1"] = {
            "pairs": found.pairs,
            "same": found.same,
            "auc": found.area,
            "tar_at_far": [
                {
                    "far": rate.wanted,
                    "tar": rate.true_accept_rate,
                    "nearest_far": rate.false_accept_rate,
                    # Above all cosines if nothing is accepted; JSON has no infinity.
                    "threshold": rate.threshold if math.isfinite(rate.threshold) else None,
                }
                for rate in found.rates
            ],
        }
    if galleries:
        ranks, rates = _means([*galleries.values()])
        written["1:N"] = {
            "galleries": {
                name: {
                    "templates": one.templates,
                    "mated": one.mated,
                    "others": one.strangers,
                    **dict(zip(_RANKS, _shares(one))),
                    "tpir_at_fpir": _by_rate(one.rates),
                    "thresholds": _by_rate(one.thresholds),
                }
                for name, one in galleries.items()
            },
            "mean": {**dict(zip(_RANKS, ranks)), "tpir_at_fpir": _by_rate(rates)},
        }
    return written


def _by_rate(values: Sequence[float]) -> dict[str, float]:
    return {f"{rate:g}": value for rate, value in zip(FALSE_ALARM_RATES, values)}


def _table(heading: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Lay out rows; a float is a share, which is shown in percent."""
    cells = [
        [f"{100 * cell:.2f}" if isinstance(cell, float) else cell for cell in row]
        for row in (heading, *rows)
    ]
    widths = [max(map(len, column)) for column in zip(*cells)]
    rule = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    lines = [
        "|".join(["", *(f" {cell:^{width}} " for cell, width in zip(row, widths)), ""])
        for row in cells
    ]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])
