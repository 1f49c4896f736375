"""An update is queued to its end while the device stands still: nothing in it waits."""

from __future__ import annotations

from typing import Union

import pytest

from runtime.mxnet import mx
from tests.device.half_products import emulate_float16
from tests.device.stalled_device import stalled
from tests.device.updates import DEVICE, HOST, ClassifierUpdates, Faces, FaceUpdates

CHOICES = [
    Faces(),
    Faces(dtype="float16"),
    Faces("arcface", "adamw"),
    Faces("curricularface", filter_threshold=0.2),
    Faces("adaface"),
    Faces("magface", "adam", "float16"),
    # With dropout, whose generator is given a seed in each update.
    Faces(net_output="E"),
]


def test_a_stalled_device_runs_nothing_and_others_do() -> None:
    array = mx.nd.ones((2,), ctx=DEVICE)
    with stalled(DEVICE, patience=3) as stall:
        (mx.nd.ones((2,), ctx=HOST) + 1).wait_to_read()
        assert not stall.waiting
        (array + 1).wait_to_read()
        assert stall.waiting.startswith("tests/device/test_stalled_device.py:")


@pytest.mark.parametrize("choices", CHOICES, ids=str)
def test_updates_of_faces(choices: Faces, monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_float16(monkeypatch)
    assert_queued(FaceUpdates(choices, DEVICE))


def test_updates_of_classifiers() -> None:
    assert_queued(ClassifierUpdates(DEVICE))


def assert_queued(run: Union[FaceUpdates, ClassifierUpdates]) -> None:
    """A whole update can be queued while the device does nothing."""
    run.train(2)
    # Its numbers are read in the next one.
    run.step(run.batch(2), 2, 0.01)
    with stalled(DEVICE) as stall:
        run.step(run.batch(3), 3, 0.01)
        stall.end()
        assert not stall.waiting
    run.step.finish()
