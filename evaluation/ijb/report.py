"""What the command prints, as tables in the form of publications, and writes as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

from evaluation.ijb.identification import FALSE_ALARM_RATES, RANKS, Identification
from evaluation.ijb.verification import FALSE_ACCEPT_RATES, Verification


def summarize(galleries: Sequence[Identification]) -> tuple[list[float], list[float]]:
    """Return for ``RANKS`` the share of all mated probes, and the mean of the galleries' rates."""
    mated = sum(one.mated for one in galleries)
    return (
        [sum(counts) / mated for counts in zip(*(one.ranks for one in galleries))],
        [math.fsum(rates) / len(galleries) for rates in zip(*(one.rates for one in galleries))],
    )


def verification_table(name: str, found: Verification) -> str:
    """Return the true accept rates in percent, in the form of InsightFace's table."""
    heading = ["TAR at FAR", *(f"{far:g}" for far in FALSE_ACCEPT_RATES), "AUC"]
    shares = [*(rate.true_accept_rate for rate in found.rates), found.area]
    return _table([heading, [name, *map(_percent, shares)]])


def identification_table(names: Sequence[str], galleries: Sequence[Identification]) -> str:
    """Return the rates of each gallery and their mean, in percent."""
    rows = [
        [
            *("gallery", "templates", "mated", "others"),
            *(f"rank-{rank}" for rank in RANKS),
            *(f"TPIR at FPIR {rate:g}" for rate in FALSE_ALARM_RATES),
        ]
    ]
    for name, one in zip(names, galleries):
        shares = [*(count / one.mated for count in one.ranks), *one.rates]
        counts = [f"{count:,}" for count in (one.templates, one.mated, one.strangers)]
        rows.append([name, *counts, *map(_percent, shares)])
    ranks, rates = summarize(galleries)
    rows.append(["mean", "", "", "", *map(_percent, [*ranks, *rates])])
    return _table(rows)


def as_json(
    found: Optional[Verification], galleries: Sequence[Identification], names: Sequence[str]
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
        ranks, rates = summarize(galleries)
        written["1:N"] = {
            "galleries": {name: _gallery(one) for name, one in zip(names, galleries)},
            "mean": {**_ranks(ranks), "tpir_at_fpir": _rates(rates)},
        }
    return written


def _gallery(one: Identification) -> dict[str, Any]:
    return {
        "templates": one.templates,
        "mated": one.mated,
        "others": one.strangers,
        **_ranks([count / one.mated for count in one.ranks]),
        "tpir_at_fpir": _rates(one.rates),
        "thresholds": _rates(one.thresholds),
    }


def _ranks(shares: Sequence[float]) -> dict[str, float]:
    return {f"rank-{rank}": share for rank, share in zip(RANKS, shares)}


def _rates(values: Sequence[float]) -> dict[str, float]:
    return {f"{rate:g}": value for rate, value in zip(FALSE_ALARM_RATES, values)}


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows)]
    rule = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    lines = [
        "|".join(["", *(f" {cell:^{width}} " for cell, width in zip(row, widths)), ""])
        for row in rows
    ]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])
