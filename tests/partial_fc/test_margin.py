"""Margins against numbers computed by hand, and their slopes against differences."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from partial_fc.margin import AdaFace, CombinedMargin, CurricularFace, Targets, build
from partial_fc.options import LOSSES, HeadOptions
from runtime.mxnet import mx
from runtime.state import REPLICATED
from tests.support.reference_losses import NormMargin
from tests.support.thread_world import run_ranks


def apply(margin, cosines):
    values, slopes = margin.apply(mx.nd.array(cosines))
    return values.asnumpy(), slopes.asnumpy()


# At an angle of 60 degrees, with margins of 30 degrees, or twice the angle.
@pytest.mark.parametrize(
    ("margins", "value", "slope"),
    [
        ((1.0, 0.0, 0.0), 0.5, 1.0),
        ((1.0, 0.0, 0.35), 0.15, 1.0),
        ((1.0, np.pi / 6, 0.0), 0.0, 2 / 3**0.5),
        ((2.0, 0.0, 0.0), -0.5, 2.0),
    ],
)
def test_combined_margins_by_hand(margins, value, slope):
    values, slopes = apply(CombinedMargin(*margins), [0.5])
    assert values == pytest.approx([value], abs=1e-6) and slopes == pytest.approx([slope])
    # Rounding past one gives no NaN.
    for numbers in apply(CombinedMargin(*margins), [1.0, -1.0, 1.0000002, -1.0000002]):
        assert np.isfinite(numbers).all()


@pytest.mark.parametrize(
    "make",
    [
        partial(CombinedMargin, 1.0, 0.5, 0.0),
        partial(CombinedMargin, 0.9, 0.4, 0.15),
        partial(CombinedMargin, 1.3, 0.2, 0.0),
        NormMargin,
        *(partial(build, HeadOptions(loss)) for loss in LOSSES),
    ],
)
def test_slopes_equal_differences(make):
    """Of the margin's own values, between cosines or norms that are near each other."""
    cosines, step = np.linspace(-0.9, 0.9, 37), 2e-3
    norms, norm_step = np.linspace(5.0, 130.0, 37), 0.05

    def margined(cosine_shift=0.0, norm_shift=0.0):
        # A new margin each time: its running means depend on cosines and norms.
        def rank_main(world):
            return make()(make_targets(world, cosines + cosine_shift, norms + norm_shift))

        return run_ranks(1, rank_main)[0]

    def difference(above, below):
        return above.asnumpy().astype(float) - below.asnumpy().astype(float)

    found, above, below = margined(), margined(cosine_shift=step), margined(cosine_shift=-step)
    slopes = difference(above.cosines_B, below.cosines_B) / (2 * step)
    assert found.slopes_B.asnumpy() == pytest.approx(slopes, abs=2e-3, rel=2e-3)
    if found.norm_terms is None:
        return
    above, below = margined(norm_shift=norm_step), margined(norm_shift=-norm_step)
    slopes = difference(above.cosines_B, below.cosines_B) / (2 * norm_step)
    assert found.norm_terms.slopes_B.asnumpy() == pytest.approx(slopes, abs=1e-5, rel=2e-3)
    penalties = above.norm_terms.penalties_B, below.norm_terms.penalties_B
    slopes = difference(*penalties) / (2 * norm_step)
    assert found.norm_terms.penalty_slopes_B.asnumpy() == pytest.approx(slopes, abs=1e-4, rel=2e-3)


def make_targets(world, cosines, norms, local=None):
    local = np.ones(len(cosines)) if local is None else local
    inverse_norms = 1.0 / np.array(norms, dtype=np.float32)[:, None]
    return Targets(mx.nd.array(cosines), mx.nd.array(local), mx.nd.array(inverse_norms), world)


def memory_of(margin):
    """What it remembers after an update, by name."""
    arrays = margin.export_state(1).arrays
    assert all(stored.kind == REPLICATED for stored in arrays.values())
    return {name.removeprefix("margin."): stored.array for name, stored in arrays.items()}


def test_adaface_clips_the_distance_and_the_angle():
    def rank_main(world):
        norms, cosines = [1.0, 3.0, 1.0, 3.0], [0.5, 0.5, -0.99, 0.99]
        margined = AdaFace(m=0.4, h=10.0)(make_targets(world, cosines, norms))
        return margined.cosines_B.asnumpy(), margined.slopes_B.asnumpy()

    cosines, slopes = run_ranks(1, rank_main)[0]
    # Distances of ±1 at most: the worst image gets θ + 0.4 and no m3, the best θ − 0.4 and 0.8.
    # arccos(-0.99) + 0.4 lies above π and arccos(0.99) − 0.4 below 0.
    expected = [np.cos(np.pi / 3 + 0.4), np.cos(np.pi / 3 - 0.4) - 0.8, -1.0, 1.0 - 0.8]
    assert cosines == pytest.approx(expected, abs=1e-5)
    assert slopes[2:] == pytest.approx([0.0, 0.0], abs=1e-5)


def test_margins_are_built_by_name():
    assert build(HeadOptions("arcface")) == CombinedMargin(1.0, 0.5, 0.0)
    assert build(HeadOptions("adaface", margins=(1.0, 0.1, 0.2))) == CombinedMargin(1.0, 0.1, 0.2)
    assert isinstance(build(HeadOptions("adaface")), AdaFace)
    assert isinstance(build(HeadOptions("curricularface")), CurricularFace)
    for loss in LOSSES:
        build(HeadOptions(loss))
    for margin in (CombinedMargin(), AdaFace(), CurricularFace()):
        assert memory_of(margin) == {}
