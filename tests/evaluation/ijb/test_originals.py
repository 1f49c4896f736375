"""The rates of InsightFace's two programs for 1:1, ``ijb.py`` and ``ijb_11.py``.

They are what the programs gave for this set, run with their sources.
"""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.ijb.lists import Faces, Pairs
from evaluation.ijb.templates import Weighting, sums_of_parts, template_features
from evaluation.ijb.verification import cosines_of_pairs, verify


@pytest.mark.parametrize(
    ("program", "norm", "expected"),
    [
        ("ijb.py", True, [0.238687, 0.238687, 0.328305, 0.559006, 0.779059, 0.953860]),
        ("ijb_11.py", True, [0.176575, 0.182786, 0.226264, 0.371783, 0.597161, 0.906832]),
        ("ijb.py", False, [0.224490, 0.224490, 0.330967, 0.552795, 0.778172, 0.952085]),
        ("ijb_11.py", False, [0.217391, 0.244898, 0.280390, 0.456078, 0.694765, 0.932564]),
    ],
)
def test_rates_are_those_of_the_programs(program: str, norm: bool, expected: list[float]) -> None:
    """Of faces whose views have other lengths: by them one of ``ijb_11.py`` counts more or less."""
    rng = np.random.default_rng(43)
    people, templates, faces, width = 60, 500, 2500, 24
    of_template = rng.integers(0, people, templates)
    template = np.concatenate([np.arange(templates), rng.integers(0, templates, faces - templates)])
    centers = rng.normal(0, 1, (people, width))
    views = centers[of_template[template]] + rng.normal(0, 2.4, (2, faces, width))
    # A blurred face has short features.
    views *= np.exp(rng.normal(0, 0.8, (2, faces, 1)))
    chosen = rng.integers(0, templates, (60_000, 2))
    same = of_template[chosen[:, 0]] == of_template[chosen[:, 1]]
    scores = rng.uniform(0.3, 1, faces).astype(np.float32).astype(np.float64)
    media = rng.integers(0, 4, faces)
    ids = np.arange(templates)
    listed = Faces([""] * faces, np.zeros((faces, 5, 2)), scores, ids, template, media)
    parts = np.split(views.astype(np.float32), [700, 1900], axis=1)
    sums = sums_of_parts(parts, unit_views=program == "ijb.py")
    features = template_features(sums, listed, Weighting(norm=norm))
    first, second = chosen.astype(np.int32).T
    cosines = cosines_of_pairs(features, Pairs(first, second, same))
    rates = [rate.true_accept_rate for rate in verify(cosines, same).rates]
    assert rates == pytest.approx(expected, abs=1e-6)
