"""Margins that are accepted pull every target within 90 degrees of its center towards it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partial_fc.margin import CombinedMargin
from partial_fc.options import LOSSES, HeadOptions
from runtime.errors import ConfigError
from runtime.mxnet import mx
from training.config.presets import PRESETS, find

ANGLES = np.linspace(0.01, math.pi / 2, 181)


def is_accepted(margins: tuple[float, float, float]) -> bool:
    try:
        HeadOptions(margins=margins).check()
    except ConfigError:
        return False
    return True


def pull(margins: tuple[float, float, float]) -> np.ndarray:
    """How much each target's logit grows with its cosine."""
    _, slopes = CombinedMargin(*margins).apply(mx.nd.array(np.cos(ANGLES)))
    found: np.ndarray = slopes.asnumpy()
    return found


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    m1=st.floats(1, 4),
    m2=st.floats(0, 1.6, allow_subnormal=False),
    m3=st.floats(0, 0.99, allow_subnormal=False),
)
def test_a_target_is_pulled_just_where_the_margins_are_accepted(
    m1: float, m2: float, m3: float
) -> None:
    margins = (m1, m2, m3)
    turned = m1 * math.pi / 2 + m2
    if is_accepted(margins):
        assert pull(margins).min() >= -1e-5
    elif m2 < math.pi / 2 and turned > math.pi + 1e-3:
        assert pull(margins).min() < 0
    else:
        assert turned > math.pi or m2 >= math.pi / 2


@pytest.mark.parametrize("margins", [(2.0, 0.0, 0.0), (1.35, 0.0, 0.0), (1.0, 1.57, 0.99)])
def test_margins_up_to_the_bound_are_accepted(margins: tuple[float, float, float]) -> None:
    assert is_accepted(margins)


def test_losses_and_presets_are_accepted() -> None:
    found = [loss.margins for loss in LOSSES.values()]
    for margins in [*found, *(find(name).get("margins") for name in PRESETS)]:
        assert margins is None or is_accepted(margins)
