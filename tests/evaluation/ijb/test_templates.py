from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.ijb.lists import Faces
from evaluation.ijb.templates import Weighting, sums_of_parts, template_features
from tests.support import reference_ijb
from tests.support.ijb_set import MadeSet


def faces_of(templates: np.ndarray, media: np.ndarray, scores: np.ndarray) -> Faces:
    ids, rows = np.unique(templates, return_inverse=True)
    count = len(templates)
    return Faces([""] * count, np.zeros((count, 5, 2)), scores, ids, rows, media)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=40),
    st.lists(st.integers(0, 40), max_size=3),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_equal_the_loops(
    groups: list[tuple[int, int]], cuts: list[int], options: tuple[bool, bool, bool]
) -> None:
    detector_score, norm, unit = options
    count = len(groups)
    templates, media = np.array(groups, np.int64).T
    rng = np.random.default_rng(count)
    views = rng.standard_normal((2, count, 6)).astype(np.float32)
    scores = rng.uniform(0.1, 1, count)
    nothing = np.empty(0)
    made = MadeSet(Path(), templates, media, scores, nothing, nothing, nothing, [], nothing)
    parts = np.split(views, sorted({min(cut, count) for cut in cuts} - {0, count}), axis=1)
    sums = sums_of_parts(parts, unit_views=unit)
    faces = faces_of(templates, media, scores)
    rows = template_features(sums, faces, Weighting(detector_score, norm))
    features = reference_ijb.faces(views, unit=unit)
    expected = reference_ijb.templates(features, made, detector_score=detector_score, norm=norm)
    assert faces.template_ids.tolist() == list(expected)
    assert rows == pytest.approx(np.stack(list(expected.values())), abs=1e-12)


def test_a_template_whose_faces_count_nothing_is_zero() -> None:
    faces = faces_of(np.array([1, 2]), np.array([1, 1]), np.array([0.0, 1.0]))
    rows = template_features([np.ones((2, 4), np.float32)], faces, Weighting())
    assert rows.tolist() == [[0] * 4, [0.5] * 4]
