"""Whole updates on a device: all arrays are there, and the numbers are those of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from partial_fc.options import LOSSES
from partial_fc.shard import STATES
from tests.device.half_products import emulate_float16
from tests.device.operator_calls import watched_operators
from tests.device.updates import (
    DEVICE,
    HOST,
    PAIRS,
    ClassifierUpdates,
    Faces,
    FaceUpdates,
    Updated,
    followed,
)
from tests.support.thread_world import run_ranks
from training.update import loss_scale

# Differences allowed after the first update and after the second, of an array's largest number:
# rounding moves the first by 2e-6. In the second a number may be on the other side of a ReLU's
# bend, which without AVX-512 moved a beta by 4 % on a rank of 12 images. That the first one was
# right the second loss says, and a momentum that is not added, a beta by half.
TOLERANCES = (3e-5, 0.1)
# Of Adam's first step for a gradient near zero, at a learning rate of 1e-3.
ROUNDING = 3e-5
# Its gradient is rounding alone: the BatchNorm behind it takes the mean away.
WITHOUT_EFFECT = "pre_fc1_bias"


@pytest.fixture(autouse=True)
def half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """float16 products, and a loss scale at which a batch of a few images does not overflow."""
    emulate_float16(monkeypatch)
    monkeypatch.setattr(loss_scale, "_INITIAL", 8.0)


def on_device(updates: Any, *arguments: Any, **options: Any) -> list[Updated]:
    """What updates on the device ended with; all of their operators are watched."""
    with watched_operators() as calls:
        run = updates(*arguments, **options)
        found = followed(run)
    contexts = {array.context for call in calls for array in call.arrays}
    assert str(DEVICE) in contexts
    return found


def assert_equal_updates(found: Sequence[Updated], expected: Sequence[Updated]) -> None:
    """The same losses, and the same arrays but for rounding."""
    assert len(found) == len(expected) == len(TOLERANCES)
    for one, other, tolerance in zip(found, expected, TOLERANCES):
        np.testing.assert_allclose(one.loss, other.loss, rtol=1e-5)
        assert one.arrays.keys() == other.arrays.keys()
        for name, values in other.arrays.items():
            if name != WITHOUT_EFFECT:
                error = np.abs(one.arrays[name] - values).max()
                assert error <= tolerance * np.abs(values).max() + ROUNDING, (name, error)


def assert_similar_updates(
    found: Sequence[Updated], expected: Sequence[Updated], before: dict[str, Any]
) -> None:
    """float16 beside float32: similar losses, and all weights have moved alike."""
    for one, other, tolerance in zip(found, expected, (2e-3, 0.1)):
        np.testing.assert_allclose(one.loss, other.loss, rtol=tolerance)
    weights = [name for name in before if name.endswith("_weight")]
    moved, wanted = (
        np.concatenate([(arrays[name] - before[name]).ravel() for name in weights])
        for arrays in (found[-1].arrays, expected[-1].arrays)
    )
    lengths = np.linalg.norm(moved), np.linalg.norm(wanted)
    assert 0.8 < lengths[0] / lengths[1] < 1.25, lengths
    assert moved @ wanted > 0.8 * lengths[0] * lengths[1]


def check_faces(choices: Faces) -> None:
    expected = followed(FaceUpdates(choices, HOST))
    assert_equal_updates(on_device(FaceUpdates, choices, DEVICE), expected)


def check_half_precision_faces(choices: Faces) -> None:
    wide = FaceUpdates(replace(choices, dtype="float32"), DEVICE)
    before = wide.arrays()
    expected = followed(wide)
    assert_similar_updates(on_device(FaceUpdates, choices, DEVICE), expected, before)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss(loss: str) -> None:
    check_faces(Faces(loss))


@pytest.mark.parametrize("optimizer", sorted(STATES.keys() - {"sgd"}))
def test_every_optimizer(optimizer: str) -> None:
    check_faces(Faces(optimizer=optimizer))


@pytest.mark.parametrize("loss", ["cosface", "curricularface"])
def test_the_filter(loss: str) -> None:
    check_faces(Faces(loss, filter_threshold=0.2))


def test_recomputation() -> None:
    check_faces(Faces(recompute=True))
    check_half_precision_faces(Faces(recompute=True, dtype="float16"))


def test_synchronized_statistics() -> None:
    check_faces(Faces(sync_bn=True))
    check_half_precision_faces(Faces(sync_bn=True, dtype="float16"))


@pytest.mark.parametrize("optimizer", sorted(STATES))
def test_float16(optimizer: str) -> None:
    check_half_precision_faces(Faces("arcface", optimizer, dtype="float16"))


@pytest.mark.device
@pytest.mark.parametrize("choices", PAIRS, ids=str)
def test_every_choice_with_every_other(choices: Faces) -> None:
    check = check_faces if choices.dtype == "float32" else check_half_precision_faces
    check(choices)


@pytest.mark.device
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("network", "size"), [("r18", 32), ("mbf", 112)])
def test_other_networks(network: str, size: int, dtype: str) -> None:
    """Their PReLU, and mbf's grouped convolutions; rounding moves so many layers further."""
    choices = Faces(network=network, image_size=(size, size), global_batch=8)
    host = FaceUpdates(choices, HOST)
    before = host.arrays()
    expected = followed(host)
    found = on_device(FaceUpdates, replace(choices, dtype=dtype), DEVICE)
    assert_similar_updates(found, expected, before)


@pytest.mark.parametrize(
    "choices",
    [
        *(Faces(loss) for loss in ("cosface", "adaface", "curricularface", "magface")),
        Faces(sync_bn=True),
    ],
    ids=str,
)
def test_two_ranks(choices: Faces) -> None:
    """As threads, each with its part of the batches and of the centers, on one device."""

    def rank_on(context: Any) -> Any:
        def rank_main(world: Any) -> Any:
            return followed(FaceUpdates(choices, context, world))

        return rank_main

    with watched_operators() as calls:
        found = run_ranks(2, rank_on(DEVICE))
    assert calls
    losses = [[updated.loss for updated in rank] for rank in found]
    assert losses[0] == losses[1], "the loss is that of the global batch"
    for rank, expected in zip(found, run_ranks(2, rank_on(HOST))):
        assert_equal_updates(rank, expected)


@pytest.mark.parametrize("options", [{}, {"mixup": 0.2}, {"model": "LeNet"}])
def test_classifiers(options: Any) -> None:
    expected = followed(ClassifierUpdates(HOST, **options))
    assert_equal_updates(on_device(ClassifierUpdates, DEVICE, **options), expected)


def test_float16_classifiers() -> None:
    wide = ClassifierUpdates(DEVICE)
    before = wide.arrays()
    expected = followed(wide)
    assert_similar_updates(on_device(ClassifierUpdates, DEVICE, dtype="float16"), expected, before)
