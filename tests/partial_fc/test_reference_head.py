"""The reference of the head's tests is itself checked: by finite differences and by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.support.reference_head import margin_logit, reference_step
from tests.support.reference_losses import MARGINS, ReferenceAdaFace, ReferenceNormMargin


def test_reference_gradient_equals_finite_differences():
    """The reference is itself checked, on the loss alone."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(3, 4))
    centers = generator.normal(size=(5, 4))
    labels, classes = np.array([0, 3, 3]), np.arange(5)
    adaface = ReferenceAdaFace()(np.linalg.norm(features, axis=1), np.zeros(3))
    cases: list[Callable[[], dict[str, Any]]]
    cases = [partial(dict, margins=margins) for margins in MARGINS.values()]
    cases += [lambda: adaface, lambda: {"margins": (1.0, 0.5, 0.0), "hardness": 0.3}]
    # With a gradient through the norms, so not the same after a step of the features.
    cases += [lambda: ReferenceNormMargin()(np.linalg.norm(features, axis=1), np.zeros(3))]

    def step_of(case, filter_threshold):
        return reference_step(
            features, labels, centers, classes, scale=8.0,
            filter_threshold=filter_threshold, **case(),
        )  # fmt: skip

    for case, filter_threshold in itertools.product(cases, [1.0, 0.1]):
        step = step_of(case, filter_threshold)
        for gradient, array in (
            (step.features_gradient, features),
            (step.centers_gradient, centers),
        ):
            numeric = np.zeros_like(array)
            for index in np.ndindex(*array.shape):
                for sign in (1, -1):
                    array[index] += sign * 1e-6
                    numeric[index] += sign * step_of(case, filter_threshold).loss / 2e-6
                    array[index] -= sign * 1e-6
            assert np.abs(numeric - gradient).max() < 1e-7


def test_margin_formula_of_the_reference():
    assert margin_logit(np.array([0.5]), 1.0, 0.0, 0.35) == pytest.approx(0.15)
    assert margin_logit(np.array([0.5]), 1.0, np.pi / 6, 0.0) == pytest.approx(0.0, abs=1e-12)
