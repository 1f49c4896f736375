"""Updates that are right pass, updates of broken parts do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parallel.world import LoneWorld
from partial_fc.options import LOSSES
from partial_fc.rows.device import DeviceRows
from runtime.gpu_check import NotRun, Wrong
from runtime.mxnet import mx
from tests.device.half_products import emulate_float16
from training.device_check import subject as subject_module
from training.device_check import updates
from training.device_check.subject import Subject, Trained
from training.device_check.updates import FLOAT16, FLOAT32, TF32
from training.update import loss_scale
from training.update.optimizer import BackboneOptimizer

WORLD = LoneWorld()
DEVICE = mx.cpu(1)


@pytest.fixture(scope="module")
def host() -> Trained:
    return updates.train(Subject(), mx.cpu(), "float32", WORLD)


def compare(host: Trained, kind: str = FLOAT32) -> str:
    return updates.check(Subject(), host, DEVICE, kind, WORLD)


def multiply_rate(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    update = BackboneOptimizer.update
    monkeypatch.setattr(
        BackboneOptimizer, "update", lambda self, number, lr: update(self, number, factor * lr)
    )


def test_a_right_device_passes(host: Trained) -> None:
    assert compare(host).startswith("differs from the processor by loss ")
    with pytest.raises(NotRun, match="no float16 products"):
        compare(host, FLOAT16)


@pytest.mark.parametrize("name", ["cosface", "adamw"])
def test_float16_passes_if_its_products_are_those_of_tensor_cores(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    emulate_float16(monkeypatch)
    monkeypatch.setattr(subject_module, "need_float16", lambda context: None)
    # The sum of squares of float16 gradients is float16 itself on a processor, and overflows.
    monkeypatch.setattr(loss_scale, "_INITIAL", 64.0)
    subject = updates.subjects()[name]
    host = updates.train(subject, mx.cpu(), "float32", WORLD)
    assert updates.check(subject, host, DEVICE, FLOAT16, WORLD).startswith("differs")
    multiply_rate(monkeypatch, 2.0)
    with pytest.raises(Wrong, match="allowed: .*weights"):
        updates.check(subject, host, DEVICE, FLOAT16, WORLD)


@pytest.mark.parametrize("kind", [FLOAT32, TF32])
@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0])
def test_an_optimizer_with_another_learning_rate_does_not(
    host: Trained, monkeypatch: pytest.MonkeyPatch, kind: str, factor: float
) -> None:
    multiply_rate(monkeypatch, factor)
    with pytest.raises(Wrong, match="allowed: .*weights 0"):
        compare(host, kind)


def test_a_head_that_forgets_its_centers_or_has_another_loss_does_not(
    host: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    for loss in {*LOSSES} - {Subject().head.loss}:
        other = replace(Subject().head, loss=loss)
        with pytest.raises(Wrong, match="allowed: loss 0.003"):
            updates.check(replace(Subject(), head=other), host, DEVICE, TF32, WORLD)
    monkeypatch.setattr(DeviceRows, "update", lambda self, *arguments: None)
    with pytest.raises(Wrong, match="centers 1.0e[+]00; allowed: .*centers 0.01"):
        compare(host)


def test_every_subject_differs_from_the_plain_one() -> None:
    """What it adds is seen in its numbers: the filter leaves something out, for instance."""
    found = updates.subjects()
    assert found["cosface"] == Subject()
    plain = updates.train(found["cosface"], mx.cpu(), "float32", WORLD)
    for name in ("filter", "adam", "adamw"):
        with pytest.raises(Wrong):
            updates.check(found[name], plain, mx.cpu(), TF32, WORLD)


def test_what_is_no_number_is_wrong() -> None:
    one = {"weights": np.ones(3, np.float32)}
    zero = {"weights": np.zeros(3, np.float32)}
    assert updates.change_error(Trained([1.0], one), Trained([1.0], one), "weights") == 0
    assert updates.change_error(Trained([1.0], zero), Trained([1.0], one), "weights") == 1
    assert updates.loss_error(Trained([1.0, 3.0], {}), Trained([1.0, 2.0], {})) == 0.5
    assert updates.judge({"loss": 1e-3}, "sgd", FLOAT32).endswith("by loss 1.0e-03")
    for error in (float("nan"), 1.1e-3):
        with pytest.raises(Wrong, match="allowed: loss 0.001$"):
            updates.judge({"loss": error}, "sgd", FLOAT32)
    with pytest.raises(Wrong, match="allowed: statistics 0.005$"):
        updates.judge({"weights": 0.09, "statistics": 0.006}, "adam", FLOAT32)
