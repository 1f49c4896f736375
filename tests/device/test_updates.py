"""Whole updates on a device: all arrays are there, and the numbers are those of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

import numpy as np
import pytest

import backbones
from backbones.graph.nodes import to_json
from partial_fc.options import LOSSES
from partial_fc.shard import STATES
from tests.device.half_products import emulate_float16
from tests.device.operator_calls import WAITING, watched_operators, with_gpu_kernel
from tests.device.stalled_device import stalled
from tests.device.updates import (
    DEVICE,
    HOST,
    ON_GPU,
    ClassifierUpdates,
    Faces,
    FaceUpdates,
    Updated,
)
from tests.support.thread_world import run_ranks
from training.update import loss_scale

# Differences allowed after the first update and after the second, of an array's largest number:
# rounding moves the first by 2e-6. In the second a number may be on the other side of a ReLU's
# bend, which moved a beta by 4 %; a momentum that is not added moves it by half.
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
    with watched_operators() as contexts:
        found = updates(*arguments, **options).followed()
    assert str(DEVICE) in contexts
    return found


def assert_equal_updates(
    found: Sequence[Updated], expected: Sequence[Updated], before: dict[str, Any]
) -> None:
    """The same losses, and the same arrays but for rounding, of which a GPU has more."""
    assert len(found) == len(expected) == len(TOLERANCES)
    if ON_GPU:
        assert_similar_updates(found, expected, before)
        return
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
    """float16 beside float32: similar losses, and all weights and centers have moved alike."""
    for one, other, tolerance in zip(found, expected, (2e-3, 0.1)):
        np.testing.assert_allclose(one.loss, other.loss, rtol=tolerance)
    weights = [name for name in before if name.endswith("_weight")]
    for names in (weights, ["centers"] if "centers" in before else []):
        moved, wanted = (
            np.concatenate([[0], *((arrays[name] - before[name]).ravel() for name in names)])
            for arrays in (found[-1].arrays, expected[-1].arrays)
        )
        lengths = np.linalg.norm(moved), np.linalg.norm(wanted)
        assert moved @ wanted >= 0.8 * lengths[0] * lengths[1]
        assert 0.8 * lengths[1] <= lengths[0] <= 1.25 * lengths[1], (names, lengths)


def check(choices: Faces) -> None:
    """float32 beside the host, float16 beside float32 on the device."""
    of_context = HOST if choices.dtype == "float32" else DEVICE
    wide = FaceUpdates(replace(choices, dtype="float32"), of_context)
    before = wide.arrays()
    expected, found = wide.followed(), on_device(FaceUpdates, choices, DEVICE)
    if choices.dtype == "float32":
        assert_equal_updates(found, expected, before)
    else:
        assert_similar_updates(found, expected, before)


@pytest.mark.parametrize(
    "choices",
    [
        *map(Faces, LOSSES),
        *(Faces(optimizer=optimizer) for optimizer in sorted(STATES.keys() - {"sgd"})),
        *(Faces("arcface", optimizer, dtype="float16") for optimizer in sorted(STATES)),
        Faces("curricularface", filter_threshold=0.2),
        *(Faces(recompute=True, dtype=dtype) for dtype in ("float32", "float16")),
        *(Faces(sync_bn=True, dtype=dtype) for dtype in ("float32", "float16")),
    ],
    ids=str,
)
def test_updates_of_faces(choices: Faces) -> None:
    check(choices)


@pytest.mark.device
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("network", "size"), [("r18", 32), ("mbf", 112)])
def test_other_networks(network: str, size: int, dtype: str) -> None:
    """Their PReLU, and mbf's grouped convolutions; rounding moves so many layers further."""
    choices = Faces(network=network, image_size=(size, size), global_batch=8)
    host = FaceUpdates(choices, HOST)
    before, expected = host.arrays(), host.followed()
    found = on_device(FaceUpdates, replace(choices, dtype=dtype), DEVICE)
    assert_similar_updates(found, expected, before)


@pytest.mark.parametrize(
    "choices",
    [
        *(Faces(loss) for loss in ("adaface", "curricularface", "magface")),
        Faces(sync_bn=True),
    ],
    ids=str,
)
def test_two_ranks(choices: Faces) -> None:
    """As threads, each with its part of the batches and of the centers, on one device."""

    def run_on(context: Any) -> list[tuple[dict[str, Any], list[Updated]]]:
        def rank_main(world: Any) -> Any:
            updates = FaceUpdates(choices, context, world)
            return updates.arrays(), updates.followed()

        return run_ranks(2, rank_main)

    with watched_operators() as contexts:
        found = run_on(DEVICE)
    assert str(DEVICE) in contexts
    losses = [[updated.loss for updated in rank] for _, rank in found]
    assert losses[0] == losses[1], "the loss is that of the global batch"
    for (_, rank), (before, expected) in zip(found, run_on(HOST)):
        assert_equal_updates(rank, expected, before)


@pytest.mark.parametrize("options", [{"mixup": 0.2}, {"model": "LeNet"}])
def test_classifiers(options: Any) -> None:
    host = ClassifierUpdates(HOST, **options)
    before, expected = host.arrays(), host.followed()
    assert_equal_updates(on_device(ClassifierUpdates, DEVICE, **options), expected, before)


def test_float16_classifiers() -> None:
    wide = ClassifierUpdates(DEVICE)
    before, expected = wide.arrays(), wide.followed()
    assert_similar_updates(on_device(ClassifierUpdates, DEVICE, dtype="float16"), expected, before)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_operator_of_a_network_has_a_kernel(dtype: str) -> None:
    """Of the graphs, into which ``watched_operators`` does not see."""
    for name in backbones.names():
        nodes = to_json(backbones.build(name, dtype=dtype))["nodes"]
        operators = {node["op"] for node in nodes} - {"null"}
        assert "Convolution" in operators
        assert operators <= with_gpu_kernel() and not operators & WAITING


@pytest.mark.skipif(ON_GPU, reason="only a processor can be told to stand still")
@pytest.mark.parametrize(
    "choices",
    [
        *(Faces("curricularface", filter_threshold=0.2), Faces("magface", "adam", "float16")),
        # With dropout, whose generator is given a seed in each update; and a classifier.
        *(Faces("adaface", "adamw", net_output="E"), None),
    ],
    ids=str,
)
def test_nothing_in_an_update_waits_for_the_device(choices: Optional[Faces]) -> None:
    run = ClassifierUpdates(DEVICE) if choices is None else FaceUpdates(choices, DEVICE)
    run.train(2)
    # Its numbers are read in the next one.
    run.step(run.batch(2), 2, 0.01)
    with stalled(DEVICE) as stall:
        run.step(run.batch(3), 3, 0.01)
        stall.end()
        assert not stall.waiting
    run.step.finish()
