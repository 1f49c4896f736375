from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from partial_fc.margin import AdaFace, CombinedMargin, CurricularFace, Targets, build
from partial_fc.options import LOSSES, HeadOptions
from runtime.errors import ConfigError
from runtime.mxnet import mx
from runtime.state import REPLICATED
from tests.support.reference_head import NormMargin
from tests.support.thread_world import run_ranks
from training.config.presets import PRESETS, find


# At an angle of 60 degrees, with margins of 30 degrees, or twice the angle.
@pytest.mark.parametrize(("margins", "value", "slope"), [
    ((1.0, 0.0, 0.0), 0.5, 1.0),
    ((1.0, 0.0, 0.35), 0.15, 1.0),
    ((1.0, np.pi / 6, 0.0), 0.0, 2 / 3**0.5),
    ((2.0, 0.0, 0.0), -0.5, 2.0),
])
def test_combined_margins_by_hand(margins, value, slope):
    # Rounding past one gives no NaN.
    cosines = mx.nd.array([0.5, 1.0, -1.0, 1.0000002, -1.0000002])
    values, slopes = (found.asnumpy() for found in CombinedMargin(*margins).apply(cosines))
    assert values[0] == pytest.approx(value, abs=1e-6) and slopes[0] == pytest.approx(slope)
    assert np.isfinite([values, slopes]).all()


def margined(margin, cosines, norms):
    """What a margin makes of targets with these cosines and norms, on one rank."""

    def rank_main(world):
        inverse_norms = mx.nd.array(1.0 / np.array(norms, dtype=np.float32)[:, None])
        return margin(Targets(mx.nd.array(cosines), mx.nd.ones(len(cosines)), inverse_norms, world))

    return run_ranks(1, rank_main)[0]


@pytest.mark.parametrize("make", [
    partial(CombinedMargin, 1.0, 0.5, 0.0),
    partial(CombinedMargin, 0.9, 0.4, 0.15),
    partial(CombinedMargin, 1.3, 0.2, 0.0),
    NormMargin,
    *(partial(build, HeadOptions(loss)) for loss in LOSSES),
])
def test_slopes_equal_differences(make):
    """Of the margin's own values, between cosines or norms that are near each other."""
    cosines, step = np.linspace(-0.9, 0.9, 37), 2e-3
    norms, norm_step = np.linspace(5.0, 130.0, 37), 0.05

    def slopes(above, below, width):
        return (above.asnumpy().astype(float) - below.asnumpy().astype(float)) / (2 * width)

    # A new margin each time: its running means depend on cosines and norms.
    found = margined(make(), cosines, norms)
    above, below = (margined(make(), cosines + by, norms) for by in (step, -step))
    expected = slopes(above.cosines_B, below.cosines_B, step)
    assert found.slopes_B.asnumpy() == pytest.approx(expected, abs=2e-3, rel=2e-3)
    if (terms := found.norm_terms) is None:
        return
    above, below = (margined(make(), cosines, norms + by) for by in (norm_step, -norm_step))
    expected = slopes(above.cosines_B, below.cosines_B, norm_step)
    assert terms.slopes_B.asnumpy() == pytest.approx(expected, abs=1e-5, rel=2e-3)
    penalties = above.norm_terms.penalties_B, below.norm_terms.penalties_B
    expected = slopes(*penalties, norm_step)
    assert terms.penalty_slopes_B.asnumpy() == pytest.approx(expected, abs=1e-4, rel=2e-3)


def test_adaface_clips_the_distance_and_the_angle():
    norms, cosines = [1.0, 3.0, 1.0, 3.0], [0.5, 0.5, -0.99, 0.99]
    margin = AdaFace(m=0.4, h=10.0)
    found = margined(margin, cosines, norms)
    # Distances of ±1 at most: the worst image gets θ + 0.4 and no m3, the best θ − 0.4 and 0.8.
    # arccos(-0.99) + 0.4 lies above π and arccos(0.99) − 0.4 below 0.
    expected = [np.cos(np.pi / 3 + 0.4), np.cos(np.pi / 3 - 0.4) - 0.8, -1.0, 1.0 - 0.8]
    assert found.cosines_B.asnumpy() == pytest.approx(expected, abs=1e-5)
    assert found.slopes_B.asnumpy()[2:] == pytest.approx([0.0, 0.0], abs=1e-5)
    kinds = {name: stored.kind for name, stored in margin.export_state(1).arrays.items()}
    assert kinds == dict.fromkeys(("margin.norm_mean", "margin.norm_deviation"), REPLICATED)


def test_margins_are_built_by_name():
    assert build(HeadOptions("arcface")) == CombinedMargin(1.0, 0.5, 0.0)
    assert build(HeadOptions("adaface", margins=(1.0, 0.1, 0.2))) == CombinedMargin(1.0, 0.1, 0.2)
    assert isinstance(build(HeadOptions("adaface")), AdaFace)
    assert isinstance(build(HeadOptions("curricularface")), CurricularFace)
    for loss in LOSSES:
        build(HeadOptions(loss))
    for margin in (CombinedMargin(), AdaFace(), CurricularFace()):
        assert margin.export_state(1).arrays == {}


def is_accepted(m1: float, m2: float, m3: float) -> bool:
    try:
        HeadOptions(margins=(m1, m2, m3)).check()
    except ConfigError:
        return False
    return True


@settings(max_examples=25, deadline=None)
@given(m1=st.floats(1, 4), m2=st.floats(0, 1.6, allow_subnormal=False))
@example(m1=2.0, m2=0.0)
@example(m1=1.35, m2=0.0)
@example(m1=1.0, m2=1.57)
def test_margins_are_accepted_that_pull_targets_to_their_centers(m1, m2):
    """All within 90 degrees: each target's logit grows with its cosine."""
    angles = np.cos(np.linspace(0.01, np.pi / 2, 181))
    pull = CombinedMargin(m1, m2, 0.99).apply(mx.nd.array(angles))[1].asnumpy().min()
    turned = m1 * np.pi / 2 + m2
    if is_accepted(m1, m2, 0.99):
        assert pull >= -1e-5 and turned <= np.pi
    elif m2 < np.pi / 2 and turned > np.pi + 1e-3:
        assert pull < 0
    else:
        assert turned > np.pi or m2 >= np.pi / 2


def test_which_margins_are_accepted():
    found = [loss.margins for loss in LOSSES.values()]
    for margins in [*found, *(find(name).get("margins") for name in PRESETS)]:
        assert margins is None or is_accepted(*margins)
    for refused in ((0.99, 0.5, 0.0), (1.0, -0.1, 0.0), (1.0, 0.0, -0.1), (1.0, 0.0, 1.0)):
        assert not is_accepted(*refused)
