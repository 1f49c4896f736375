"""Margins against numbers computed by hand, and their slopes against differences."""

from __future__ import annotations

import numpy as np
import pytest

from partial_fc.margin import CombinedMargin
from runtime.mxnet import mx


def apply(margin, cosines):
    values, slopes = margin(mx.nd.array(cosines))
    return values.asnumpy(), slopes.asnumpy()


def test_softmax_leaves_cosines_alone():
    values, slopes = apply(CombinedMargin(), [-1.0, 0.3, 1.0])
    assert values == pytest.approx([-1.0, 0.3, 1.0]) and slopes == pytest.approx([1, 1, 1])


def test_cosface_subtracts():
    values, slopes = apply(CombinedMargin(m3=0.35), [0.5, -0.2])
    assert values == pytest.approx([0.15, -0.55]) and slopes == pytest.approx([1, 1])


def test_arcface_adds_to_the_angle():
    # θ = 60°, margin 30°: cos 90° = 0; slope sin 90° / sin 60° = 2 / √3.
    values, slopes = apply(CombinedMargin(m2=np.pi / 6), [0.5])
    assert values == pytest.approx([0.0], abs=1e-6) and slopes == pytest.approx([2 / 3**0.5])


def test_sphereface_multiplies_the_angle():
    # θ = 60°, m1 = 2: cos 120° = -0.5; slope 2 sin 120° / sin 60° = 2.
    values, slopes = apply(CombinedMargin(m1=2.0), [0.5])
    assert values == pytest.approx([-0.5], abs=1e-6) and slopes == pytest.approx([2.0])


@pytest.mark.parametrize("margins", [(1.0, 0.5, 0.0), (0.9, 0.4, 0.15), (1.3, 0.2, 0.0)])
def test_slopes_equal_differences(margins):
    cosines = np.linspace(-0.95, 0.95, 39)
    m1, m2, m3 = margins

    def exact(cosine):
        return np.cos(m1 * np.arccos(cosine) + m2) - m3

    values, slopes = apply(CombinedMargin(*margins), cosines)
    assert values == pytest.approx(exact(cosines), abs=1e-5)
    differences = (exact(cosines + 1e-6) - exact(cosines - 1e-6)) / 2e-6
    assert slopes == pytest.approx(differences, abs=1e-4)


@pytest.mark.parametrize("cosine", [1.0, -1.0, 1.0000002, -1.0000002])
def test_rounding_past_one_gives_no_nan(cosine):
    values, slopes = apply(CombinedMargin(m2=0.5), [cosine])
    assert np.isfinite(values).all() and np.isfinite(slopes).all()
