"""Which points and pairs are drawn; how that looks, only a look says."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from evaluation.folds import folds_of
from evaluation.verification import verify
from evaluation.verification.curves import Pairs, pairs_of, roc
from evaluation.verification.pictures import draw_roc, steps_of, write_bad_cases, write_hardest
from runtime.errors import DataError
from tests.evaluation.verification.test_verification import bools, embedded

COSINES = np.array([0.9, 0.8, 0.2, 0.7, 0.2, -0.1])
SAME = bools("SDSDSD")
PAIRS = Pairs(SAME, COSINES, 2.0 - 2.0 * COSINES, folds_of(6, 2))
CURVE = roc(COSINES, SAME)


def test_a_curve_begins_where_one_pair_is_accepted() -> None:
    """Steps, as a threshold accepts whole pairs: no share between that of one and of two."""
    far, tar = steps_of(CURVE)
    assert (far[0], far[-1]) == pytest.approx((1 / 3, 1)) and np.all(np.diff(far) > 0)
    assert tar[0] == pytest.approx(1 / 3) and tar[-1] == 1
    assert np.all(tar[far < 2 / 3 - 1e-6] == tar[0]) and np.all(tar[far > 2 / 3 + 1e-6] == 1)


def test_every_curve_has_its_name() -> None:
    """Also one that matplotlib would leave out, or take for a formula."""
    assert len({draw_roc({name: CURVE}) for name in ("_a", "_b", "$\\frac$")}) == 3


def test_a_curve_without_errors_is_drawn() -> None:
    found = draw_roc({"all right": roc(np.array([0.9, 0.1, 0.2, 0.3]), bools("SDDD"))})
    image = cv2.imdecode(np.frombuffer(found, np.uint8), cv2.IMREAD_COLOR)
    # There is a line of the first color, a blue.
    blue = (image[..., 0] > 150) & (image[..., 2] < 80)
    assert blue.any(axis=0).sum() > 100


@pytest.fixture
def sheets() -> Mock:
    """Draws pairs with notes and a title."""
    return Mock(side_effect=[f"sheet {n}".encode() for n in range(1, 5)])


def test_the_hardest_come_first_and_equal_ones_as_in_the_set(tmp_path: Path, sheets: Mock) -> None:
    folder = tmp_path / "new"
    assert write_hardest(folder, "lfw", PAIRS, 0.25, sheets) == [
        f"{folder}/lfw-hardest-same.png: the 3 least similar pairs of one person",
        f"{folder}/lfw-hardest-different.png: the 3 most similar pairs of two people",
    ]
    (pairs, notes, title), (others, *_) = (call.args for call in sheets.call_args_list)
    assert [*pairs] == [2, 4, 0] and [*others] == [1, 3, 5]
    expected = "pair 2: cosine 0.200, pair 4: cosine 0.200, pair 0: cosine 0.900"
    assert ", ".join(notes) == expected
    said = "the 3 least similar pairs of one person; threshold of the accuracy: 0.250"
    assert title == f"lfw: {said}"
    assert (folder / "lfw-hardest-different.png").read_bytes() == b"sheet 2"
    cosines = np.linspace(-1, 1, 100)
    many = Pairs(cosines < 2, cosines, 2 - 2 * cosines, folds_of(100, 2))
    write_hardest(folder, "lfw", many, 0.25, sheets)
    assert [*sheets.call_args_list[2].args[0]] == list(range(40))


def test_wrong_pairs_in_a_list_and_on_a_sheet_for_each_kind(tmp_path: Path, sheets: Mock) -> None:
    """The farthest comes first."""
    # Of the pairs 0 to 3 the threshold is 0.21, of the others 0.11.
    distances = (0.105, 0.315, 0.205, 0.405, 0.105, 0.205, 0.305, 0.405)
    pairs = pairs_of(embedded(*distances), bools("SSDDSSDD"), folds=2)
    folder = tmp_path / "new" / "wrong"
    lines = write_bad_cases(folder, "lfw", pairs, sheets)
    assert (folder / "lfw-wrong.tsv").read_text().splitlines() == [
        "pair\tfold\tperson\tdistance\tthreshold",
        *("1\t0\tsame\t0.3150\t0.21", "5\t1\tsame\t0.2050\t0.11"),
        "2\t0\tdifferent\t0.2050\t0.21",
    ]
    (same, same_notes, title), (different, notes, _) = (one.args for one in sheets.call_args_list)
    assert ([*same], [*same_notes]) == ([1, 5], ["1: 0.315 > 0.21", "5: 0.205 > 0.11"])
    assert ([*different], [*notes]) == ([2], ["2: 0.205 < 0.21"])
    assert title.startswith("lfw: 2 of 4 pairs of one person are judged as two")
    for number, kind in enumerate(("same", "different"), 1):
        assert (folder / f"lfw-{kind}.png").read_bytes() == f"sheet {number}".encode()
    assert [line.partition(": ")[2] for line in lines] == [
        "3 of 8 pairs are judged wrongly",
        "2 of one person are judged as two",
        "1 of two people are judged as one",
    ]


def test_as_many_are_wrong_as_the_accuracy_says(tmp_path: Path, sheets: Mock) -> None:
    """A kind without mistakes has no sheet, and a sheet at most forty pairs."""
    generator = np.random.default_rng(2)
    same = generator.random(400) < 0.5
    distances = np.clip(generator.normal(np.where(same, 1.0, 1.6), 0.8), 0, 4)
    embeddings = embedded(*distances)
    lines = write_bad_cases(tmp_path, "lfw", pairs_of(embeddings, same), sheets)
    wrong = round(400 * (1 - verify(embeddings, same, xnorm=1.0).accuracy))
    assert lines[0].endswith(f"lfw-wrong.tsv: {wrong} of 400 pairs are judged wrongly")
    assert len((tmp_path / "lfw-wrong.tsv").read_text().splitlines()) == wrong + 1
    assert [len(call.args[0]) for call in sheets.call_args_list] == [40, 40]
    right = pairs_of(embedded(*[0.1, 1.9] * 10), bools("SD" * 10))
    assert len(write_bad_cases(tmp_path, "lfw", right, sheets)) == 1 and sheets.call_count == 2
    assert [path.name for path in tmp_path.iterdir()] == ["lfw-wrong.tsv"]


def test_a_folder_that_cannot_be_written(tmp_path: Path, sheets: Mock) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written: .* another folder with --hardest"):
        write_hardest(tmp_path / "file", "lfw", PAIRS, 0.25, sheets)
    with pytest.raises(DataError, match="choose another folder with --bad-cases"):
        write_bad_cases(tmp_path / "file", "lfw", PAIRS, sheets)
