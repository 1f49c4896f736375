"""Whole updates on a device: all arrays are there, and the numbers are those of the host."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

import numpy as np
import pytest

import backbones
from backbones.graph.nodes import to_json
from partial_fc.options import LOSSES
from partial_fc.shard import STATES
from runtime.mxnet import mx
from tests.device import updates
from tests.device.operator_calls import WAITING, WITH_GPU_KERNEL, stalled, watched_operators
from tests.device.updates import DEVICE, HOST, ON_GPU, ClassifierUpdates, FaceUpdates, Updated
from tests.support.launch import finish, ranks
from tests.support.thread_world import run_ranks
from training.update import mixed_precision

Followed = Sequence[Updated]
Kind = Union[type[FaceUpdates], type[ClassifierUpdates]]
# Differences allowed after the first update and after the second, of an array's largest number:
# rounding moves the first by 2e-6. In the second a number may be on the other side of a ReLU's
# bend, which moved a beta by 4 %; a momentum that is not added moves it by half.
TOLERANCES = (3e-5, 0.1)
# Of Adam's first step for a gradient near zero, at a learning rate of 1e-3.
ROUNDING = 1e-4
# Its gradient is rounding alone: the BatchNorm behind it takes the mean away.
WITHOUT_EFFECT = "pre_fc1_bias"


@pytest.fixture(autouse=True)
def half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """float16 products, and a loss scale at which a batch of a few images does not overflow."""
    updates.emulate_float16(monkeypatch)
    monkeypatch.setattr(mixed_precision, "_INITIAL", 8.0)


def assert_equal_updates(found: Followed, expected: Followed, before: dict[str, Any]) -> None:
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


def assert_similar_updates(found: Followed, expected: Followed, before: dict[str, Any]) -> None:
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


def assert_like_wide(kind: Kind, given: dict[str, Any], *, are_similar: bool) -> None:
    """float32 beside the host, float16 beside float32 on the device."""
    is_wide = given.get("dtype", "float32") == "float32"
    wide = kind(HOST if is_wide else DEVICE, **{**given, "dtype": "float32"})
    before, expected = wide.arrays(), wide.followed()
    with watched_operators() as contexts:
        found = kind(DEVICE, **given).followed()
    assert str(DEVICE) in contexts
    compare = assert_equal_updates if is_wide and not are_similar else assert_similar_updates
    compare(found, expected, before)


def label(value: Any) -> str:
    return getattr(value, "__name__", None) or "-".join(map(str, value.values())) or "default"


HALF = {"dtype": "float16"}
OF_FACES: list[dict[str, Any]] = [
    *({"loss": loss} for loss in LOSSES),
    *({"optimizer": optimizer} for optimizer in sorted(STATES.keys() - {"sgd"})),
    *({"loss": "arcface", "optimizer": optimizer, **HALF} for optimizer in sorted(STATES)),
    {"loss": "curricularface", "filter_threshold": 0.2},
    *({name: True, **dtype} for name in ("recompute", "sync_bn") for dtype in ({}, HALF)),
]
OF_CLASSIFIERS: list[dict[str, Any]] = [{}, {"mixup": 0.2}, {"model": "LeNet"}, HALF]
RUNS: list[tuple[Kind, dict[str, Any]]] = [(FaceUpdates, given) for given in OF_FACES]
RUNS += [(ClassifierUpdates, given) for given in OF_CLASSIFIERS]


@pytest.mark.parametrize(("kind", "given"), RUNS, ids=label)
def test_updates(kind: Kind, given: dict[str, Any]) -> None:
    assert_like_wide(kind, given, are_similar=False)


@pytest.mark.device
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("network", "size"), [("r18", 32), ("mbf", 112)])
def test_other_networks(network: str, size: int, dtype: str) -> None:
    """Their PReLU, and mbf's grouped convolutions; rounding moves so many layers further."""
    given = {"network": network, "image_size": (size, size), "global_batch": 8, "dtype": dtype}
    assert_like_wide(FaceUpdates, given, are_similar=True)


def as_threads(context: Any, given: dict[str, Any]) -> list[tuple[Any, list[Updated]]]:
    """What two ranks begin with, each with its part of batches and centers, and end with."""

    def rank_main(world: Any) -> tuple[Any, list[Updated]]:
        run = FaceUpdates(context, world, **given)
        return run.arrays(), run.followed()

    return run_ranks(2, rank_main)


GATHERED = ("adaface", "curricularface", "magface")


@pytest.mark.parametrize(
    "given", [*({"loss": loss} for loss in GATHERED), {"sync_bn": True}], ids=label
)
def test_two_ranks_on_one_device(given: dict[str, Any]) -> None:
    with watched_operators() as contexts:
        found = as_threads(DEVICE, given)
    assert str(DEVICE) in contexts
    losses = [[updated.loss for updated in rank] for _, rank in found]
    assert losses[0] == losses[1], "the loss is that of the global batch"
    for (_, rank), (before, expected) in zip(found, as_threads(HOST, given)):
        assert_equal_updates(rank, expected, before)


@pytest.mark.thorough
@pytest.mark.launcher
@pytest.mark.skipif(ON_GPU and mx.context.num_gpus() < 2, reason="there is one GPU")
@pytest.mark.parametrize("launcher", ["--gloo", pytest.param("--mpi", marks=pytest.mark.device)])
def test_ranks_of_horovod_compute_what_threads_do(launcher: str, tmp_path: Path) -> None:
    losses = ("cosface", *GATHERED)
    finish(*ranks(launcher, 2), sys.executable, "-m", "tests.device.updates", tmp_path, *losses)
    for loss in losses:
        for rank, (before, expected) in enumerate(as_threads(DEVICE, {"loss": loss})):
            found = [dict(np.load(tmp_path / f"{rank}-{loss}-{update}.npz")) for update in (0, 1)]
            ended = [Updated(float(one.pop("loss")), one) for one in found]
            assert_equal_updates(ended, expected, before)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_operator_of_a_network_has_a_kernel(dtype: str) -> None:
    """Of the graphs, into which ``watched_operators`` does not see."""
    for name in backbones.names():
        nodes = to_json(backbones.build(name, dtype=dtype))["nodes"]
        operators = {node["op"] for node in nodes} - {"null"}
        assert "Convolution" in operators
        assert operators <= WITH_GPU_KERNEL and not operators & WAITING


@pytest.mark.skipif(ON_GPU, reason="only a processor can be told to stand still")
@pytest.mark.parametrize(("kind", "given"), [
    (FaceUpdates, {"loss": "curricularface", "filter_threshold": 0.2}),
    (FaceUpdates, {"loss": "magface", "optimizer": "adam", **HALF}),
    # With dropout, whose generator is given a seed in each update.
    (FaceUpdates, {"loss": "adaface", "optimizer": "adamw", "net_output": "E"}),
    (ClassifierUpdates, {}),
], ids=label)
def test_nothing_in_an_update_waits_for_the_device(kind: Kind, given: dict[str, Any]) -> None:
    run = kind(DEVICE, **given)
    run.train(2)
    # Its numbers are read in the next one.
    run.step(run.batch(2), 2, run.lr)
    with stalled(DEVICE) as stall:
        run.step(run.batch(3), 3, run.lr)
        stall.end()
        assert not stall.waiting
    run.step.finish()
