from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluation.bad_cases import Judgment, judge, write_bad_cases
from evaluation.verification import verify
from runtime.errors import DataError
from tests.evaluation.verification.test_verification import bools, embedded

# Of the pairs 0 to 3 the threshold is 0.21, of the others 0.11.
DISTANCES = (0.105, 0.315, 0.205, 0.405, 0.105, 0.205, 0.305, 0.405)
SAME = bools("SSDDSSDD")


class Sheets:
    """Notes what is to be drawn."""

    def __init__(self) -> None:
        self.drawn: list[tuple[list[int], list[str], str]] = []

    def __call__(self, pairs, notes, title) -> bytes:
        self.drawn.append((list(pairs), list(notes), title))
        return f"sheet {len(self.drawn)}".encode()


def test_judgments_are_those_of_the_accuracy() -> None:
    judgments = judge(embedded(*DISTANCES), SAME, folds=2)
    assert [one.pair for one in judgments] == list(range(8))
    assert [one.fold for one in judgments] == [0] * 4 + [1] * 4
    assert [one.threshold for one in judgments] == pytest.approx([0.21] * 4 + [0.11] * 4)
    assert [one.distance for one in judgments] == pytest.approx(DISTANCES)
    assert [one.pair for one in judgments if not one.is_right] == [1, 2, 5]
    on_the_threshold = Judgment(0, 0, same=False, distance=1.5, threshold=1.5)
    assert on_the_threshold.is_right and not on_the_threshold._replace(same=True).is_right
    generator = np.random.default_rng(2)
    same = generator.random(200) < 0.5
    embeddings = embedded(*np.clip(generator.normal(np.where(same, 1.0, 1.6), 0.4), 0, 4))
    right = np.mean([one.is_right for one in judge(embeddings, same)])
    assert right == pytest.approx(verify(embeddings, same, xnorm=1.0).accuracy)


def test_the_farthest_comes_first_in_a_list_and_on_a_sheet_for_each_kind(tmp_path) -> None:
    sheets, folder = Sheets(), tmp_path / "new" / "wrong"
    judgments = judge(embedded(*DISTANCES), SAME, folds=2)
    lines = write_bad_cases(folder, "lfw", judgments, sheets)
    assert (folder / "lfw-wrong.tsv").read_text().splitlines() == [
        "pair\tfold\tperson\tdistance\tthreshold",
        *("1\t0\tsame\t0.3150\t0.21", "5\t1\tsame\t0.2050\t0.11"),
        "2\t0\tdifferent\t0.2050\t0.21",
    ]
    (same, same_notes, title), (different, different_notes, _) = sheets.drawn
    assert (same, same_notes) == ([1, 5], ["1: 0.315 > 0.21", "5: 0.205 > 0.11"])
    assert (different, different_notes) == ([2], ["2: 0.205 < 0.21"])
    assert title.startswith("lfw: 2 of 4 pairs of one person are judged as two")
    assert (folder / "lfw-same.png").read_bytes() == b"sheet 1"
    assert (folder / "lfw-different.png").read_bytes() == b"sheet 2"
    assert [line.partition(": ")[2] for line in lines] == [
        "3 of 8 pairs are judged wrongly",
        "2 of one person are judged as two",
        "1 of two people are judged as one",
    ]


def test_a_kind_without_mistakes_has_no_sheet_and_a_sheet_forty_pairs(tmp_path: Path) -> None:
    sheets = Sheets()
    judgments = [Judgment(pair, 0, True, 2 + pair / 100, 1.5) for pair in range(100)]
    write_bad_cases(tmp_path, "lfw", judgments, sheets)
    assert sheets.drawn[0][0] == list(range(99, 59, -1)) and len(sheets.drawn) == 1
    assert len((tmp_path / "lfw-wrong.tsv").read_text().splitlines()) == 101
    right = judge(embedded(*[0.1, 1.9] * 10), bools("SD" * 10))
    lines = write_bad_cases(tmp_path, "lfw", right, sheets)
    assert len(sheets.drawn) == len(lines) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["lfw-wrong.tsv"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="choose another folder with --bad-cases"):
        write_bad_cases(tmp_path / "file", "lfw", [], Sheets())
