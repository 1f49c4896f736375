"""The dynamic loss scale: falls on overflow, rises after a quiet while, looks at gradients."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runtime.mxnet import mx
from training.update.loss_scale import LossScale

DEVICE = mx.cpu(1)
INITIAL = 2.0**13


def array(*values: float, dtype: str = "float32"):
    return mx.nd.array(values, ctx=DEVICE, dtype=dtype)


def value(scale: LossScale) -> float:
    return scale.export_state(0).values["loss_scale"]


def read(reduced) -> list[float]:
    values = [float(number.asscalar()) for number in reduced.numbers]
    assert reduced.are_finite(values), "a dynamic scale expects gradients to overflow"
    return values


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
    scale, queued = LossScale(DEVICE), []
    # Each is named with its scale after later ones are queued; gradients may be of two types.
    for update, last in enumerate((0.0, bad, bad)):
        gradients = [array(1.0, -2.0, dtype="float16"), array(1.0, last)]
        queued.append(scale.judge(gradients, update))
        scale.adapt(queued[-1].numbers[0])
    assert [read(reduced) for reduced in queued] == [[1, INITIAL], [0, INITIAL], [0, INITIAL / 2]]
    assert value(scale) == INITIAL / 4
    assert [record.getMessage() for record in caplog.records] == [
        f"update {update} skipped: a float16 gradient overflowed; loss scale now {scale}"
        for update, scale in ((2, 4096), (3, 2048))
    ]


def test_the_scale_doubles_after_every_2000_good_updates_in_a_row():
    scale = LossScale(DEVICE)
    good_updates(scale, 1999)
    scaled = scale.scaled(array(1.0, 3.0).reshape((2, 1)))
    assert scaled.asnumpy().tolist() == [[INITIAL], [3 * INITIAL]]
    # Gradients are divided by the scale that they were multiplied with.
    unscale = scale.adapt(array(1.0))
    assert value(scale) == 2 * INITIAL
    assert (scaled * unscale).asnumpy().tolist() == [[1.0], [3.0]]
    # An overflow restarts the count.
    good_updates(scale, 1999)
    scale.adapt(array(0.0))
    good_updates(scale, 1999)
    assert value(scale) == INITIAL
    good_updates(scale, 1)
    good_updates(scale, 2000)
    assert value(scale) == 4 * INITIAL
    for _ in range(40):
        scale.adapt(array(0.0))
    assert value(scale) == 1.0
