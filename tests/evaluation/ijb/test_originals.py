"""The rates of InsightFace's two programs for 1:1, ``ijb.py`` and ``ijb_11.py``.

The constants are what the programs give for ``synthetic()``; with their sources in the folder
``TOOLKIT_ORIGINALS`` they run here.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import sklearn.preprocessing
from sklearn.metrics import auc, roc_curve

from evaluation.ijb.lists import Faces, Pairs
from evaluation.ijb.templates import Weighting, sums_of_parts, template_features
from evaluation.ijb.verification import FALSE_ACCEPT_RATES, cosines_of_pairs, verify
from runtime.mxnet import mx

RECOGNITION = Path("deepinsight+insightface/recognition")
PROGRAMS = {
    "ijb.py": RECOGNITION / "partial_fc/mxnet/evaluation/ijb.py",
    "ijb_11.py": RECOGNITION / "_evaluation_/ijb/ijb_11.py",
}
RATES = {
    "ijb.py": [0.238687, 0.238687, 0.328305, 0.559006, 0.779059, 0.953860],
    "ijb_11.py": [0.176575, 0.182786, 0.226264, 0.371783, 0.597161, 0.906832],
}
"""With the norm score, the default there."""
WITHOUT_NORM = {
    "ijb.py": [0.224490, 0.224490, 0.330967, 0.552795, 0.778172, 0.952085],
    "ijb_11.py": [0.217391, 0.244898, 0.280390, 0.456078, 0.694765, 0.932564],
}


class Synthetic(NamedTuple):
    views: np.ndarray
    """The network's outputs for each view of each face [2, n, D]."""
    templates: np.ndarray
    media: np.ndarray
    scores: np.ndarray
    pairs: np.ndarray
    """Two templates and a label in each row."""

    @property
    def ids(self) -> np.ndarray:
        return np.unique(self.templates)


def synthetic() -> Synthetic:
    """Faces whose views have other lengths: by them a face of ``ijb_11.py`` counts more or less."""
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
    pairs = np.column_stack([5 + 2 * chosen, same])
    scores = rng.uniform(0.3, 1, faces).astype(np.float32)
    return Synthetic(
        views.astype(np.float32), 5 + 2 * template, rng.integers(0, 4, faces), scores, pairs
    )


def ours(made: Synthetic, program: str, *, norm: bool) -> tuple[np.ndarray, list[float]]:
    ids, rows = np.unique(made.templates, return_inverse=True)
    count = len(made.templates)
    scores = made.scores.astype(np.float64)
    faces = Faces([""] * count, np.zeros((count, 5, 2)), scores, ids, rows, made.media)
    parts = np.split(made.views, [700, 1900], axis=1)
    sums = sums_of_parts(parts, unit_views=program == "ijb.py")
    features = template_features(sums, faces, Weighting(norm=norm))
    first, second = np.searchsorted(ids, made.pairs[:, :2]).astype(np.int32).T
    same = made.pairs[:, 2] == 1
    cosines = cosines_of_pairs(features, Pairs(first, second, same))
    return cosines, [rate.true_accept_rate for rate in verify(cosines, same).rates]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("norm", "expected"), [(True, RATES), (False, WITHOUT_NORM)])
def test_rates_are_those_of_the_programs(program: str, norm: bool, expected: dict) -> None:
    _, rates = ours(synthetic(), program, norm=norm)
    assert rates == pytest.approx(expected[program], abs=1e-6)


def test_the_programs_differ() -> None:
    """So that taking one for the other is noticed, at every rate."""
    assert np.abs(np.subtract(RATES["ijb.py"], RATES["ijb_11.py"])).min() > 0.005


class Silent:
    """matplotlib, its table and its colors, of which no number comes."""

    def __getattr__(self, name: str) -> Any:
        return Silent()

    def __call__(self, *_: object, **__: object) -> Any:
        return Silent()


def theirs(source: str, made: Synthetic, *, unit_views: bool, norm: bool) -> dict[str, Any]:
    """Run the part of a program that begins with the features, and return its variables."""
    program = ast.parse(source)
    steps = [node for node in program.body if isinstance(node, (ast.FunctionDef, ast.If, ast.For))]
    wanted = ("image2template_feature", "verification", "use_", "method")
    chosen: list[Any] = []
    for node in steps:
        name = (
            node.name
            if isinstance(node, ast.FunctionDef)
            else ast.unparse(node.test if isinstance(node, ast.If) else node.target)
        )
        if name.startswith(wanted):
            chosen.append(node)
    _, count, width = made.views.shape
    features = mx.nd.array(made.views.swapaxes(0, 1).reshape(2 * count, width))
    if unit_views:
        # In extract_parallel there, which runs a network on GPUs.
        features = mx.nd.L2Normalization(features)
    found: dict[str, Any] = {
        "np": np, "sklearn": sklearn, "roc_curve": roc_curve, "auc": auc, "plt": Silent(),
        "colours": {"job": 0}, "tpr_fpr_table": Silent(), "target": "IJBC", "methods": ["job"],
        "img_feats": features.reshape((-1, 2 * width)).asnumpy(), "faceness_scores": made.scores,
        "use_norm_score": norm, "use_detector_score": True, "use_flip_test": True,
        "x_labels": list(FALSE_ACCEPT_RATES), "label": made.pairs[:, 2], "print": lambda *_: None,
    }  # fmt: skip
    before = [node for node in chosen if not isinstance(node, ast.For)]
    exec(compile(ast.Module(before, []), "program", "exec"), found)
    rows, ids = found["image2template_feature"](
        found["img_input_feats"], made.templates, made.media
    )
    score = found["verification"](rows, ids, made.pairs[:, 0], made.pairs[:, 1])
    found["scores"] = {"job": score}
    (loop,) = (node for node in chosen if isinstance(node, ast.For))
    exec(compile(ast.Module([loop], []), "program", "exec"), found)
    return {"score": score, "fpr": found["fpr"], "tpr": found["tpr"]}


@pytest.mark.skipif("TOOLKIT_ORIGINALS" not in os.environ, reason="their sources")
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("norm", [True, False])
def test_the_programs_give_these_rates(program: str, norm: bool) -> None:
    made = synthetic()
    source = (Path(os.environ["TOOLKIT_ORIGINALS"]) / PROGRAMS[program]).read_text("utf-8")
    found = theirs(source, made, unit_views=program == "ijb.py", norm=norm)
    rates = []
    for wanted in FALSE_ACCEPT_RATES:
        # Reversed there: of equally near ones the first.
        rates.append(found["tpr"][np.abs(found["fpr"] - wanted).argmin()])
    cosines, ours_rates = ours(made, program, norm=norm)
    np.testing.assert_allclose(cosines, found["score"], rtol=0, atol=1e-6)
    assert ours_rates == pytest.approx(rates, abs=1e-6)
    expected = RATES if norm else WITHOUT_NORM
    assert rates == pytest.approx(expected[program], abs=1e-6)
