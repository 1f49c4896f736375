"""The reference of the head's tests is itself checked: by finite differences and by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.reference_head import margin_logit, reference_step
from tests.support.reference_losses import MARGINS, ReferenceAdaFace, ReferenceNormMargin

GENERATOR = np.random.default_rng(0)
FEATURES, CENTERS = GENERATOR.normal(size=(3, 4)), GENERATOR.normal(size=(5, 4))
# At norms that stay, though a step of the features changes them: the means do not follow.
ADAPTED = ReferenceAdaFace()(np.linalg.norm(FEATURES, axis=1), np.zeros(3))


@pytest.mark.parametrize("filter_threshold", [1.0, 0.1])
@pytest.mark.parametrize("case", [*MARGINS, "adaface", "curricularface", "norm margin"])
def test_reference_gradient_equals_finite_differences(case: str, filter_threshold: float) -> None:
    labels, classes = np.array([0, 3, 3]), np.arange(5)
    given: Any = {"margins": MARGINS.get(case, (1.0, 0.5, 0.0))}
    if case == "adaface":
        given = ADAPTED
    elif case == "curricularface":
        given["hardness"] = 0.3
    step_of = partial(reference_step, scale=8.0, filter_threshold=filter_threshold)

    def step() -> Any:
        norms = np.linalg.norm(FEATURES, axis=1)
        adapted = ReferenceNormMargin()(norms, np.zeros(3)) if case == "norm margin" else given
        return step_of(FEATURES, labels, CENTERS, classes, **adapted)

    exact = step()
    gradients = ((exact.features_gradient, FEATURES), (exact.centers_gradient, CENTERS))
    for gradient, array in gradients:
        numeric = np.zeros_like(array)
        for index in np.ndindex(*array.shape):
            for sign in (1, -1):
                array[index] += sign * 1e-6
                numeric[index] += sign * step().loss / 2e-6
                array[index] -= sign * 1e-6
        assert np.abs(numeric - gradient).max() < 1e-7


def test_margin_formula_of_the_reference() -> None:
    assert margin_logit(np.array([0.5]), 1.0, 0.0, 0.35) == pytest.approx(0.15)
    assert margin_logit(np.array([0.5]), 1.0, np.pi / 6, 0.0) == pytest.approx(0.0, abs=1e-12)
