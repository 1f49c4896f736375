from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.ijb.lists import Faces, find_lists, read_faces
from evaluation.ijb.templates import Weighting, template_features
from tests.support import reference_ijb
from tests.support.ijb_set import MadeSet, Sizes, write_set


def faces_of(templates: np.ndarray, media: np.ndarray, scores: np.ndarray) -> Faces:
    ids, rows = np.unique(templates, return_inverse=True)
    count = len(templates)
    return Faces([""] * count, np.zeros((count, 5, 2)), scores, ids, rows, media)


def test_by_hand() -> None:
    """Two frames of a video, averaged, and an image; and a template of one face."""
    features = np.array([[4, 0], [0, 6], [0, 3], [0, -2]], np.float32)
    faces = faces_of(np.array([5, 5, 5, 2]), np.array([1, 1, 2, 1]), np.array([1, 0.5, 2, 0.1]))
    rows = template_features([features], faces, Weighting())
    # (4, 3) / 2 + (0, 6)
    assert rows == pytest.approx(np.array([[0, -1], np.array([2, 7.5]) / np.hypot(2, 7.5)]))
    rows = template_features([features], faces, Weighting(detector_score=False, norm=False))
    assert rows == pytest.approx(np.array([[0, -1], np.array([0.5, 1.5]) / np.hypot(0.5, 1.5)]))


@pytest.mark.parametrize(("detector_score", "norm"), product([True, False], repeat=2))
def test_equal_the_loops(tmp_path: Path, detector_score: bool, norm: bool) -> None:
    made = write_set(tmp_path / "IJBC", Sizes(faces=200))
    features = np.random.default_rng(1).normal(0, 3, (200, 16)).astype(np.float32)
    faces = read_faces(find_lists(made.folder))
    parts = np.array_split(features, [7, 8, 130])
    rows = template_features(parts, faces, Weighting(detector_score, norm))
    expected = reference_ijb.templates(features, made, detector_score=detector_score, norm=norm)
    assert faces.template_ids.tolist() == list(expected)
    assert rows == pytest.approx(np.stack(list(expected.values())), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=40),
    st.lists(st.integers(0, 40), max_size=3),
)
def test_groups_of_all_sizes(groups: list[tuple[int, int]], cuts: list[int]) -> None:
    count = len(groups)
    templates, media = np.array(groups, np.int64).T
    rng = np.random.default_rng(count)
    features = rng.standard_normal((count, 6)).astype(np.float32)
    scores = rng.uniform(0.1, 1, count)
    nothing = np.empty(0)
    made = MadeSet(Path(), templates, media, scores, nothing, nothing, nothing, [], nothing)
    parts = [part for part in np.split(features, sorted(min(cut, count) for cut in cuts))]
    faces = faces_of(templates, media, scores)
    rows = template_features([part for part in parts if len(part)], faces, Weighting())
    expected = reference_ijb.templates(features, made)
    assert rows == pytest.approx(np.stack(list(expected.values())), abs=1e-12)


def test_a_template_whose_faces_count_nothing_is_zero() -> None:
    faces = faces_of(np.array([1, 2]), np.array([1, 1]), np.array([0.0, 1.0]))
    rows = template_features([np.ones((2, 4), np.float32)], faces, Weighting())
    assert rows.tolist() == [[0] * 4, [0.5] * 4]
