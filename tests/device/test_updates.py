"""Whole updates on a device: all arrays are there, and the numbers are those of the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from partial_fc.options import LOSSES
from partial_fc.shard import STATES
from tests.device.half_products import emulate_float16
from tests.device.operator_calls import watched_operators
from tests.device.updates import DEVICE, HOST, ClassifierUpdates, Faces, FaceUpdates
from tests.support.thread_world import run_ranks
from training.update import loss_scale

# After more of them, numbers on two sides of a ReLU's bend outweigh the rounding.
UPDATES = 2
# Its gradient is rounding alone: the BatchNorm behind it takes the mean away.
WITHOUT_EFFECT = "pre_fc1_bias"


@pytest.fixture(autouse=True)
def half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """float16 products, and a loss scale at which a batch of a few images does not overflow."""
    emulate_float16(monkeypatch)
    monkeypatch.setattr(loss_scale, "_INITIAL", 8.0)


def on_device(updates: Any, *arguments: Any, **options: Any) -> tuple[list[float], dict[str, Any]]:
    """Losses and arrays of updates on the device, all of whose operators are watched."""
    with watched_operators() as calls:
        run = updates(*arguments, **options)
        losses = run.train(UPDATES)
    contexts = {array.context for call in calls for array in call.arrays}
    assert str(DEVICE) in contexts
    return losses, run.arrays()


def assert_equal_updates(found: Any, expected: Any) -> None:
    """The same losses, and the same arrays but for rounding.

    In the second update a number may be on the other side of a ReLU's bend, which moves what begins
    at zero, a beta, by 7e-6 with AVX2.
    """
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    assert found[1].keys() == expected[1].keys()
    for name, values in expected[1].items():
        if name != WITHOUT_EFFECT:
            error = np.abs(found[1][name] - values).max()
            assert error <= 3e-3 * np.abs(values).max() + 1e-5, (name, error)


def assert_similar_updates(found: Any, expected: Any, before: dict[str, Any]) -> None:
    """float16 beside float32: similar losses, and all weights have moved alike."""
    np.testing.assert_allclose(found[0][0], expected[0][0], rtol=2e-3)
    np.testing.assert_allclose(found[0], expected[0], rtol=0.1)
    weights = [name for name in before if name.endswith("_weight")]
    moved, wanted = (
        np.concatenate([(arrays[name] - before[name]).ravel() for name in weights])
        for arrays in (found[1], expected[1])
    )
    lengths = np.linalg.norm(moved), np.linalg.norm(wanted)
    assert 0.8 < lengths[0] / lengths[1] < 1.25, lengths
    assert moved @ wanted > 0.8 * lengths[0] * lengths[1]


def check_faces(choices: Faces) -> None:
    host = FaceUpdates(choices, HOST)
    expected = host.train(UPDATES), host.arrays()
    assert_equal_updates(on_device(FaceUpdates, choices, DEVICE), expected)


def check_half_precision_faces(choices: Faces) -> None:
    wide = FaceUpdates(replace(choices, dtype="float32"), DEVICE)
    before = wide.arrays()
    expected = wide.train(UPDATES), wide.arrays()
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
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("optimizer", sorted(STATES))
@pytest.mark.parametrize("loss", LOSSES)
def test_every_choice_with_every_other(loss: str, optimizer: str, dtype: str) -> None:
    check = check_faces if dtype == "float32" else check_half_precision_faces
    for filter_threshold in (1.0, 0.2):
        check(Faces(loss, optimizer, dtype, filter_threshold))


@pytest.mark.device
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("network", "size"), [("r18", 32), ("mbf", 112)])
def test_other_networks(network: str, size: int, dtype: str) -> None:
    """Their PReLU, and mbf's grouped convolutions; rounding moves so many layers further."""
    choices = Faces(network=network, image_size=(size, size), global_batch=8)
    host = FaceUpdates(choices, HOST)
    before = host.arrays()
    expected = host.train(UPDATES), host.arrays()
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
            run = FaceUpdates(choices, context, world)
            return run.train(UPDATES), run.arrays()

        return rank_main

    with watched_operators() as calls:
        found = run_ranks(2, rank_on(DEVICE))
    assert calls
    assert found[0][0] == found[1][0], "the loss is that of the global batch"
    for rank, expected in zip(found, run_ranks(2, rank_on(HOST))):
        assert_equal_updates(rank, expected)


@pytest.mark.parametrize("options", [{}, {"mixup": 0.2}, {"model": "LeNet"}])
def test_classifiers(options: Any) -> None:
    host = ClassifierUpdates(HOST, **options)
    expected = host.train(UPDATES), host.arrays()
    assert_equal_updates(on_device(ClassifierUpdates, DEVICE, **options), expected)


def test_float16_classifiers() -> None:
    wide = ClassifierUpdates(DEVICE)
    before = wide.arrays()
    expected = wide.train(UPDATES), wide.arrays()
    assert_similar_updates(on_device(ClassifierUpdates, DEVICE, dtype="float16"), expected, before)
