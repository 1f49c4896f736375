"""The dynamic loss scale: falls on overflow, rises after a quiet while, looks at gradients."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runtime.mxnet import mx
from training.update.loss_scale import LossScale

FINE = [mx.nd.array([1.0, -2.0]), mx.nd.array([0.0])]


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_an_overflow_halves_the_scale_and_refuses_the_update(bad, caplog):
    scale = LossScale(dynamic=True)
    before = scale.value
    assert not scale.accept([FINE[0], mx.nd.array([1.0, bad])], update=7)
    assert scale.value == before / 2
    assert "update 7 skipped" in caplog.text


def test_the_scale_doubles_after_2000_good_updates_in_a_row():
    scale = LossScale(dynamic=True)
    before = scale.value
    for update in range(1999):
        assert scale.accept(FINE, update)
    assert scale.value == before
    assert scale.accept(FINE, 1999)
    assert scale.value == 2 * before


@pytest.mark.parametrize("bad", [0, 1, None])
def test_gradients_of_two_types_are_looked_at_together(bad):
    """As of a float16 network, whose norms are float32."""
    gradients = [mx.nd.array([1.0, 2.0], dtype="float16"), mx.nd.array([3.0]), mx.nd.array([4.0])]
    if bad is not None:
        gradients[bad][:] = float("inf")
    assert LossScale(dynamic=True).accept(gradients, 0) == (bad is None)


def test_an_overflow_restarts_the_count():
    scale = LossScale(dynamic=True)
    for update in range(1500):
        scale.accept(FINE, update)
    scale.accept([mx.nd.array([float("inf")])], 1500)
    fallen = scale.value
    for update in range(1999):
        scale.accept(FINE, update)
    assert scale.value == fallen


def test_the_scale_stays_at_least_one():
    scale = LossScale(dynamic=True)
    for update in range(40):
        scale.accept([mx.nd.array([float("nan")])], update)
    assert scale.value == 1.0


def test_float32_is_neither_scaled_nor_looked_at():
    scale = LossScale(dynamic=False)
    assert scale.value == 1.0
    assert scale.accept([mx.nd.array([float("nan")])], update=0)


def test_a_scale_goes_on_where_it_was_and_float32_has_none():
    saved = LossScale(dynamic=True)
    for update in range(1500):
        saved.accept(FINE, update)
    saved.accept([mx.nd.array([float("inf")])], 1500)
    saved.accept(FINE, 1501)
    memory = saved.export_state(1502).values
    reader = SimpleNamespace(number=memory.__getitem__, count=memory.__getitem__)
    dynamic, fixed = LossScale(dynamic=True), LossScale(dynamic=False)
    for scale in (dynamic, fixed):
        scale.load_state(reader)
    assert (dynamic.value, fixed.value) == (saved.value, 1.0)
    assert dynamic.export_state(0).values == memory == {"loss_scale": 4096.0, "good_updates": 1}
