from __future__ import annotations

import numpy as np
import pytest

from evaluation.folds import folds_of
from evaluation.verification import verify
from evaluation.verification.groups import compare_groups, read_groups, spread_of
from runtime.errors import DataError
from tests.evaluation.verification.test_verification import embedded


def test_each_group_by_the_common_threshold_and_by_its_own() -> None:
    generator = np.random.default_rng(7)
    same, groups = np.arange(400) % 2 == 0, ["b", "b", "a", "a"] * 100
    shift = np.array([0.0, 0.0, 0.4, 0.4] * 100)
    distances = np.clip(generator.normal(np.where(same, 1.0, 1.6) + shift, 0.2), 0, 4)
    rows = compare_groups(distances, same, folds_of(400, 10), groups)
    assert [(row.name, row.pairs) for row in rows] == [("b", 200), ("a", 200)]
    whole = verify(embedded(*distances), same, xnorm=1.0)
    assert np.mean([row.accuracy for row in rows]) == pytest.approx(whole.accuracy)
    for row in rows:
        own = np.array(groups) == row.name
        alone = verify(embedded(*distances[own]), same[own], xnorm=1.0)
        assert row.own_accuracy == pytest.approx(alone.accuracy)
        assert row.own_threshold == pytest.approx(alone.threshold)
        expected = (row.tar.share + 1 - row.far.share) / 2
        assert row.accuracy == pytest.approx(expected)
    assert rows[0].far.share > rows[1].far.share


def test_a_small_group_has_no_threshold_of_its_own() -> None:
    same = np.array([True, False] * 10)
    distances, names = np.where(same, 0.5, 1.5), ["few"] + ["many"] * 19
    few, _ = compare_groups(distances, same, folds_of(20, 10), names)
    assert (few.accuracy, few.own_accuracy, few.far) == (1.0, None, None)


def test_the_spread_by_hand() -> None:
    found = spread_of([0.9, 0.8, 0.7])
    assert found == pytest.approx((0.1, 3.0))
    assert spread_of([0.9]) is None and spread_of([1.0, 0.9]).error_ratio is None


@pytest.mark.parametrize(
    ("text", "message"),
    [("a\nb\n", "has 2 lines, and the set 'lfw' 3 pairs"), ("a\n\nb\n", "line 2: '' is no name")],
)
def test_files_that_do_not_fit(text: str, message: str, tmp_path) -> None:
    (tmp_path / "g.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        read_groups(tmp_path / "g.txt", 3, "lfw")
    with pytest.raises(DataError, match="cannot be read"):
        read_groups(tmp_path / "none.txt", 3, "lfw")
