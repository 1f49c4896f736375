"""Which points and pairs are drawn; how that looks, only a look says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest

from evaluation.folds import folds_of
from evaluation.verification.curves import Pairs, roc
from evaluation.verification.pictures import draw_roc, hardest_pairs, steps_of, write_hardest
from runtime.errors import DataError
from tests.evaluation.verification.test_verification import bools

COSINES = np.array([0.9, 0.8, 0.2, 0.7, 0.2, -0.1])
SAME = bools("SDSDSD")


def test_a_curve_begins_where_one_pair_is_accepted() -> None:
    """Steps, as a threshold accepts whole pairs: no share between that of one and of two."""
    far, tar = steps_of(roc(COSINES, SAME))
    assert (far[0], far[-1]) == pytest.approx((1 / 3, 1)) and np.all(np.diff(far) > 0)
    assert tar[0] == pytest.approx(1 / 3) and tar[-1] == 1
    assert np.all(tar[far < 2 / 3 - 1e-6] == tar[0]) and np.all(tar[far > 2 / 3 + 1e-6] == 1)


def test_the_hardest_come_first_and_equal_ones_as_in_the_set() -> None:
    same, different = hardest_pairs(COSINES, SAME)
    assert same.tolist() == [2, 4, 0] and different.tolist() == [1, 3, 5]
    same, different = hardest_pairs(COSINES, SAME, 1)
    assert same.tolist() == [2] and different.tolist() == [1]


def test_every_curve_has_its_name() -> None:
    """Also one that matplotlib would leave out, or take for a formula."""
    curve = roc(COSINES, SAME)
    names = ("_a", "_b", "$\\frac$")
    assert len({draw_roc({name: curve}) for name in names}) == len(names)


def test_a_curve_without_errors_is_drawn() -> None:
    found = draw_roc({"all right": roc(np.array([0.9, 0.1, 0.2, 0.3]), bools("SDDD"))})
    image = cv2.imdecode(np.frombuffer(found, np.uint8), cv2.IMREAD_COLOR)
    # There is a line of the first color, a blue.
    blue = (image[..., 0] > 150) & (image[..., 2] < 80)
    assert blue.any(axis=0).sum() > 100


def test_the_sheets_say_what_they_show(tmp_path: Path) -> None:
    drawn = []

    def draw(pairs: Sequence[int], notes: Sequence[str], title: str) -> bytes:
        drawn.append((list(pairs), list(notes), title))
        return b"png"

    distances: np.ndarray = 2 - 2 * COSINES
    pairs = Pairs(SAME, COSINES, distances, folds_of(6, 2))
    lines = write_hardest(tmp_path / "new", "lfw", pairs, 0.25, draw)
    assert lines == [
        f"{tmp_path}/new/lfw-hardest-same.png: the 3 least similar pairs of one person",
        f"{tmp_path}/new/lfw-hardest-different.png: the 3 most similar pairs of two people",
    ]
    assert drawn[0] == (
        [2, 4, 0],
        ["pair 2: cosine 0.200", "pair 4: cosine 0.200", "pair 0: cosine 0.900"],
        "lfw: the 3 least similar pairs of one person; threshold of the accuracy: 0.250",
    )
    assert drawn[1][0] == [1, 3, 5]
    assert (tmp_path / "new/lfw-hardest-different.png").read_bytes() == b"png"
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written: .* another folder with --hardest"):
        write_hardest(tmp_path / "file", "lfw", pairs, 0.25, draw)
