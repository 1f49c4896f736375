"""The dynamic loss scale: falls on overflow, rises after a quiet while, looks at gradients."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from runtime.mxnet import mx
from training.update.loss_scale import LossScale

DEVICE = mx.cpu(1)
INITIAL = 2.0**13


def dynamic() -> LossScale:
    return LossScale(dynamic=True, ctx=DEVICE)


def array(*values: float, dtype: str = "float32"):
    return mx.nd.array(values, ctx=DEVICE, dtype=dtype)


def value(scale: LossScale) -> float:
    return scale.export_state(0).values["loss_scale"]


def adapt(scale: LossScale, gradients, update: int = 0) -> bool:
    """As the optimizer does, and as the step reads it at once; returns whether it was skipped."""
    reduced = scale.judge(gradients, update)
    scale.adapt(reduced.numbers[0])
    values = [float(number.asscalar()) for number in reduced.numbers]
    assert reduced.are_finite(values), "a dynamic scale expects gradients to overflow"
    return values[0] == 0


def good_updates(scale: LossScale, updates: int) -> None:
    """So many good updates, of which the last is made."""
    values = dict(scale.export_state(0).values)
    values["good_updates"] += updates - 1
    load(scale, values)
    scale.adapt(array(1.0))


def load(scale: LossScale, values) -> None:
    scale.load_state(SimpleNamespace(number=values.__getitem__, count=values.__getitem__))


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_an_overflow_halves_the_scale_and_says_which_update_is_skipped(bad, caplog):
    scale = dynamic()
    assert not adapt(scale, [array(1.0, -2.0), array(0.0)], update=5)
    assert not caplog.text
    assert adapt(scale, [array(1.0, -2.0), array(1.0, bad)], update=6)
    assert value(scale) == INITIAL / 2
    assert "update 7 skipped: a float16 gradient overflowed; loss scale now 4096" in caplog.text
    caplog.clear()
    # Each is named with its scale after later ones are queued.
    queued = []
    for update in range(2):
        queued.append(scale.judge([array(bad)], update))
        scale.adapt(queued[-1].numbers[0])
    for reduced in queued:
        reduced.are_finite([float(number.asscalar()) for number in reduced.numbers])
    assert [record.getMessage()[-4:] for record in caplog.records] == ["2048", "1024"]


def test_gradients_are_divided_by_the_scale_that_they_were_multiplied_with():
    scale = dynamic()
    good_updates(scale, 1999)
    scaled = scale.scaled(array(1.0, 3.0).reshape((2, 1)))
    assert scaled.asnumpy().tolist() == [[INITIAL], [3 * INITIAL]]
    unscale = scale.adapt(array(1.0))
    assert value(scale) == 2 * INITIAL
    assert (scaled * unscale).asnumpy().tolist() == [[1.0], [3.0]]


def test_the_scale_doubles_after_every_2000_good_updates_in_a_row():
    scale = dynamic()
    good_updates(scale, 1999)
    assert value(scale) == INITIAL
    good_updates(scale, 1)
    assert value(scale) == 2 * INITIAL
    # An overflow restarts the count.
    good_updates(scale, 1999)
    scale.adapt(array(0.0))
    good_updates(scale, 1999)
    assert value(scale) == INITIAL
    good_updates(scale, 1)
    assert value(scale) == 2 * INITIAL
    good_updates(scale, 2000)
    assert value(scale) == 4 * INITIAL
    for _ in range(40):
        scale.adapt(array(0.0))
    assert value(scale) == 1.0


@pytest.mark.parametrize("bad", [0, 1, None])
def test_gradients_of_two_types_are_looked_at_together(bad):
    """As of a float16 network, whose norms are float32."""
    gradients = [array(1.0, 2.0, dtype="float16"), array(3.0), array(4.0)]
    if bad is not None:
        gradients[bad][:] = float("inf")
    assert adapt(dynamic(), gradients) == (bad is not None)


def test_float32_is_not_scaled_and_no_overflow_is_expected():
    scale = LossScale(dynamic=False)
    for device in (mx.cpu(), DEVICE):
        gradient = mx.nd.array([np.nan], ctx=device)
        assert scale.scaled(gradient) is gradient
        reduced = scale.judge([gradient], update=0)
        assert len(reduced.numbers) == (device == DEVICE)
        assert not reduced.are_finite([float(number.asscalar()) for number in reduced.numbers])


def test_a_scale_goes_on_where_it_was_and_float32_has_none():
    memory = {"loss_scale": 4096.0, "good_updates": 1999}
    scale, fixed = dynamic(), LossScale(dynamic=False)
    for one in (scale, fixed):
        load(one, memory)
    found = scale.export_state(0).values
    assert found == memory and [type(number) for number in found.values()] == [float, int]
    assert fixed.export_state(0).values == {"loss_scale": 1.0, "good_updates": 0}
    scale.adapt(array(1.0))
    assert scale.export_state(0).values == {"loss_scale": 8192.0, "good_updates": 2000}
