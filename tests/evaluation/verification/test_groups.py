from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.folds import accuracies_of_folds
from evaluation.verification import verify
from evaluation.verification.curves import hold_out, joined, pairs_of
from evaluation.verification.groups import FarRates, compare_groups, read_groups, spread_of
from evaluation.verification.report import SetReport, compare_sets, group_lines
from runtime.errors import DataError
from tests.evaluation.verification.test_verification import bools, embedded


def test_each_group_by_the_common_threshold_and_by_its_own() -> None:
    generator = np.random.default_rng(7)
    same, groups = bools("SD" * 200), np.array(["b", "b", "a", "a"] * 100)
    shift = np.where(groups == "a", 0.4, 0.0)
    distances = np.clip(generator.normal(np.where(same, 1.0, 1.6) + shift, 0.2), 0, 4)
    pairs = pairs_of(embedded(*distances), same)
    thresholds: Any = {far: hold_out(pairs, far) for far in (0.1, 1e-3)}
    rows: list[Any] = compare_groups(pairs, groups.tolist(), thresholds)
    assert [(row.name, row.pairs) for row in rows] == [("b", 200), ("a", 200)]
    whole = verify(embedded(*distances), same, xnorm=1.0)
    assert np.mean([row.accuracy for row in rows]) == pytest.approx(whole.accuracy)
    for row in rows:
        own = groups == row.name
        alone = verify(embedded(*distances[own]), same[own], xnorm=1.0)
        assert row.own_accuracy == pytest.approx(alone.accuracy)
        assert row.own_threshold_squared_distance == pytest.approx(alone.threshold)
        assert row.accuracy == pytest.approx((row.tar.share + 1 - row.far.share) / 2)
    assert rows[0].far.share > rows[1].far.share
    # What all groups together accept by the threshold for a FAR is what its report counts.
    fars, tars = ([getattr(row.for_far[0], kind).share for row in rows] for kind in ("far", "tar"))
    assert fars[0] > fars[1] and thresholds[1e-3] is None
    assert np.mean(fars) == pytest.approx(thresholds[0.1].held_out_far.share)
    assert np.mean(tars) == pytest.approx(thresholds[0.1].held_out_tar)
    assert [row.for_far[1] for row in rows] == [FarRates(1e-3, None, None)] * 2


def test_a_small_group_has_no_threshold_of_its_own() -> None:
    pairs = pairs_of(embedded(*[0.5, 1.5] * 10), bools("SD" * 10))
    few, many = compare_groups(pairs, ["few"] + ["many"] * 19, {})
    assert (few.accuracy, few.own_accuracy, few.far) == (1.0, None, None)
    lines = group_lines("set", [few, many])
    assert lines[2].split() == ["few", "1", "1.0000", "-", "-", "-", "1.0000"]
    assert lines[-1] == "-: too few pairs of one person or of two people to say"


def test_several_sets_are_groups_of_all() -> None:
    """Each set keeps its folds, so its own accuracy is that of its line."""
    generator = np.random.default_rng(1)
    reports = []
    for name, count in (("African", 60), ("Asian", 100)):
        same = np.arange(count) % 2 == 0
        distances = generator.normal(np.where(same, 1.0, 1.6), 0.2)
        reports.append(SetReport(name, embedded(*distances), same, xnorm=1.0))
    found = compare_sets(reports, [0.1])
    assert [(row.name, row.pairs) for row in found.groups] == [("African", 60), ("Asian", 100)]
    for row, report in zip(found.groups, reports):
        assert row.own_accuracy == pytest.approx(report.result.accuracy)
        assert row.own_threshold_squared_distance == pytest.approx(report.result.threshold)
    together = joined([report.pairs for report in reports])
    assert np.bincount(together.fold).tolist() == [16] * 10
    thresholds = accuracies_of_folds(together.distances, together.same, together.fold)[1]
    right = (together.distances < thresholds[together.fold]) == together.same
    assert [row.accuracy for row in found.groups] == [right[:60].mean(), right[60:].mean()]
    assert found.lines()[0].startswith("all sets: FAR 0.1: cosine ")
    assert found.to_json()["thresholds_for_far"][0]["held_out_far"]["pairs"] == 80


def test_the_spread_by_hand() -> None:
    found = spread_of([0.9, 0.8, 0.7])
    assert found == pytest.approx({"mean": 0.8, "deviation": 0.1, "error_ratio": 3.0})
    assert spread_of([0.9]) is None
    assert (spread_of([1.0, 0.9]) or {})["error_ratio"] is None


def test_files_of_groups(tmp_path: Path) -> None:
    path = tmp_path / "g.txt"
    with pytest.raises(DataError, match="cannot be read"):
        read_groups(path, 3, "lfw")
    # Of other systems.
    for content in (b"\xef\xbb\xbfa b\r\n\xc3\xa9\r\n", b"a b\r\xc3\xa9"):
        path.write_bytes(content)
        assert read_groups(path, 2, "lfw") == ["a b", "é"]
    for text, message in (
        ("a\nb\n", "has 2 lines, and the set 'lfw' 3 pairs"), ("a\n\nb\n", "line 2: '' is no name")
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_groups(path, 3, "lfw")
