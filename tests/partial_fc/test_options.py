"""Margins that are accepted pull every target within 90 degrees of its center towards it."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from partial_fc.margin import CombinedMargin
from partial_fc.options import LOSSES, HeadOptions
from runtime.errors import ConfigError
from runtime.mxnet import mx
from training.config.presets import PRESETS, find

ANGLES = mx.nd.array(np.cos(np.linspace(0.01, math.pi / 2, 181)))


def is_accepted(*margins: float) -> bool:
    try:
        HeadOptions(margins=(margins[0], margins[1], margins[2])).check()
    except ConfigError:
        return False
    return True


@settings(max_examples=25, deadline=None)
@given(m1=st.floats(1, 4), m2=st.floats(0, 1.6, allow_subnormal=False))
@example(m1=2.0, m2=0.0)
@example(m1=1.35, m2=0.0)
@example(m1=1.0, m2=1.57)
def test_a_target_is_pulled_just_where_the_margins_are_accepted(m1: float, m2: float) -> None:
    # How much each target's logit grows with its cosine.
    pull = CombinedMargin(m1, m2, 0.99).apply(ANGLES)[1].asnumpy().min()
    turned = m1 * math.pi / 2 + m2
    if is_accepted(m1, m2, 0.99):
        assert pull >= -1e-5 and turned <= math.pi
    elif m2 < math.pi / 2 and turned > math.pi + 1e-3:
        assert pull < 0
    else:
        assert turned > math.pi or m2 >= math.pi / 2


def test_which_margins_are_accepted() -> None:
    found = [loss.margins for loss in LOSSES.values()]
    for margins in [*found, *(find(name).get("margins") for name in PRESETS)]:
        assert margins is None or is_accepted(*margins)
    for refused in ((0.99, 0.5, 0.0), (1.0, -0.1, 0.0), (1.0, 0.0, -0.1), (1.0, 0.0, 1.0)):
        assert not is_accepted(*refused)
