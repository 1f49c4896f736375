"""The sharded head against a float64 reference in one process."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any, Optional

import numpy as np
import pytest

from partial_fc import blocks, head
from partial_fc.head import PartialFC, usable_dtype
from partial_fc.margin import AdaFace, CombinedMargin, CurricularFace, MagFace
from partial_fc.optimizers import Adam
from partial_fc.options import LOSSES as NAMED_LOSSES
from partial_fc.options import HeadOptions
from partial_fc.rows import device as device_module
from partial_fc.rows.device import DeviceRows
from partial_fc.rows.host import HostRows
from partial_fc.shard import Shard
from runtime.environment import Bfloat16Unit
from runtime.errors import ConfigError
from runtime.mxnet import mx
from tests.support.bfloat16 import needs_bfloat16
from tests.support.reference_head import (
    ReferenceNormTerms,
    reference_step,
    target_cosines,
)
from tests.support.reference_losses import (
    MARGINS,
    NormMargin,
    ReferenceAdaFace,
    ReferenceCombined,
    ReferenceCurricularFace,
    ReferenceNormMargin,
)
from tests.support.reference_optimizers import reference_update, zero_states
from tests.support.small_head import (
    EMBEDDING,
    GLOBAL_BATCH,
    LR,
    SGD_09,
    Loss,
    drawn_centers,
    make_batches,
    make_head,
    train_sharded,
)
from tests.support.thread_world import ThreadWorld, run_ranks


def reference_magface(norms, cosines):
    """Meng et al. 2021, on norms below 10, between 10 and 110, and above 110."""
    assert norms.min() < 10 and norms.max() > 110
    margins = np.interp(norms, [10, 110], [0.45, 0.8])
    slopes = np.where((norms > 10) & (norms < 110), 0.35 / 100, 0.0)
    penalties, penalty_slopes = norms / 110**2 + 1 / norms, 1 / 110**2 - 1 / norms**2
    terms = ReferenceNormTerms(slopes, 35 * penalties, 35 * penalty_slopes)
    return {"margins": (1.0, margins, 0.0), "norm_terms": terms}


LOSSES = {
    name: Loss(partial(CombinedMargin, *margins), partial(ReferenceCombined, *margins))
    for name, margins in MARGINS.items()
}
ADAPTIVE_LOSSES = {
    "adaface": Loss(AdaFace, ReferenceAdaFace),
    "curricularface": Loss(CurricularFace, ReferenceCurricularFace),
    "magface": Loss(MagFace, lambda: reference_magface, deviations=(1.0, 30.0)),
    "norm margin": Loss(NormMargin, ReferenceNormMargin, deviations=(1.0, 6.0)),
    "filtered arcface": replace(LOSSES["arcface"], filter_threshold=0.2),
    "filtered curricularface": Loss(CurricularFace, ReferenceCurricularFace, 0.2),
    "filtered norm margin": Loss(NormMargin, ReferenceNormMargin, 0.2),
}


def device_rows(centers, optimizer):
    # Blocks of seven rows, so that a sample spans several tensors.
    return DeviceRows(centers, optimizer, mx.cpu(1), max_elements=7 * EMBEDDING + 3)


def device_rows_in_one_block(centers, optimizer):
    return DeviceRows(centers, optimizer, mx.cpu(1))


def train_reference(num_classes, loss, scale, sampled, optimizer=SGD_09, lr=LR):
    arrays = zero_states(optimizer, drawn_centers(Shard(0, 1, num_classes), EMBEDDING, seed=5))
    margins_of, centers, steps = loss.reference(), arrays["centers"], []
    batches = make_batches(num_classes, len(sampled), loss.deviations)
    for (features, labels), classes in zip(batches, sampled):
        norms = np.linalg.norm(features.astype(np.float64), axis=1)
        adapted = margins_of(norms, target_cosines(features, labels, centers))
        step = reference_step(
            features, labels, centers, classes, scale=scale,
            filter_threshold=loss.filter_threshold, **adapted,
        )  # fmt: skip
        reference_update(optimizer, arrays, classes, step.centers_gradient, lr)
        steps.append(step)
    return steps, centers


def assert_close(actual, expected, tolerance):
    assert np.isfinite(actual).all()
    error = np.abs(actual - expected).max() / max(np.abs(expected).max(), 1e-30)
    assert error <= tolerance, error


CASES = list(
    itertools.product([1, 2, 3], [60, 61], [1.0, 0.3], sorted(MARGINS), [1.0, 64.0, 1000.0])
)


def assert_three_steps_equal_the_reference(
    world_size, num_classes, loss, scale, ratio, rows_of=HostRows
):
    steps, centers = train_sharded(world_size, num_classes, loss, scale, ratio, 3, rows_of)
    expected, expected_centers = train_reference(
        num_classes, loss, scale, [step[2] for step in steps]
    )
    tolerance = 2e-5 if scale <= 64 else 1e-3
    for (losses, gradient, classes), step in zip(steps, expected):
        assert_close(np.array(losses), step.loss, tolerance)
        assert_close(gradient, step.features_gradient, tolerance)
        assert classes.size < num_classes or ratio == 1.0
    assert_close(centers, expected_centers, tolerance)


@pytest.mark.parametrize(("world_size", "num_classes", "ratio", "loss", "scale"), CASES)
def test_three_steps_equal_the_reference(world_size, num_classes, ratio, loss, scale):
    assert_three_steps_equal_the_reference(world_size, num_classes, LOSSES[loss], scale, ratio)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("loss", ADAPTIVE_LOSSES.values(), ids=ADAPTIVE_LOSSES)
@pytest.mark.parametrize("scale", [1.0, 64.0])
@pytest.mark.parametrize("rows_of", [HostRows, device_rows], ids=["host", "device"])
def test_adaptive_losses_equal_the_reference(world_size, loss, scale, rows_of):
    assert_three_steps_equal_the_reference(world_size, 61, loss, scale, 0.3, rows_of)


class RecordingWorld:
    """A rank that records the size of each collective's result."""

    def __init__(self, world: ThreadWorld) -> None:
        self.rank, self.size, self.wait, self._world = world.rank, world.size, world.wait, world
        self.sizes: dict[str, int] = {}

    def allgather(self, array: Any, name: str) -> Any:
        gathered = self._world.allgather(array, name)
        self.sizes[f"allgather {name}"] = gathered.size
        return gathered

    def allreduce(self, array: Any, name: str, op: str = "sum") -> Any:
        self.sizes[f"allreduce {name}"] = array.size
        return self._world.allreduce(array, name, op)


@pytest.mark.parametrize("loss", NAMED_LOSSES)
def test_every_loss_sends_what_its_row_says(loss):
    def rank_main(thread_world: ThreadWorld):
        world, options = RecordingWorld(thread_world), HeadOptions(loss)
        head = PartialFC.create(
            options, (61, EMBEDDING), world, mx.cpu(), optimizer=SGD_09, seed=0
        )
        features, labels = next(make_batches(61, 1))
        own = slice(6 * world.rank, 6 * world.rank + 6)
        head.step(mx.nd.array(features[own]), labels[own], 0, LR)
        expected = {
            "allgather head.features": GLOBAL_BATCH * EMBEDDING,
            "allgather head.labels": GLOBAL_BATCH,
            "allreduce head.maximum": GLOBAL_BATCH,
            "allreduce head.denominator": 2 * GLOBAL_BATCH,
            "allreduce head.gradient": GLOBAL_BATCH * EMBEDDING,
        }
        for name, numbers in options.collectives.items():
            expected[name] = numbers * GLOBAL_BATCH
        return world.sizes, expected

    for sizes, expected in run_ranks(2, rank_main):
        assert sizes == expected


ALL_LOSSES = {**LOSSES, **ADAPTIVE_LOSSES}
OPTIMIZERS = {
    "sgd": SGD_09,
    "adam": Adam(weight_decay=0.1, decoupled=False),
    "adamw": Adam(weight_decay=0.1, decoupled=True),
}


@pytest.mark.parametrize("loss", ALL_LOSSES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("ratio", [1.0, 0.1])
def test_operators_of_a_device_equal_the_kernels_of_the_host(loss, optimizer, ratio):
    lr = LR if optimizer == "sgd" else 1e-3
    settings = (2, 301, ALL_LOSSES[loss], 64.0, ratio, 3)
    host, host_centers = train_sharded(
        *settings, optimizer=OPTIMIZERS[optimizer], lr=lr
    )
    for rows_of in (device_rows, device_rows_in_one_block):
        device, device_centers = train_sharded(
            *settings, rows_of=rows_of, optimizer=OPTIMIZERS[optimizer], lr=lr
        )
        for one, other in zip(host, device):
            assert_close(np.array(other[0]), np.array(one[0]), 2e-5)
            assert_close(other[1], one[1], 2e-5)
        assert_close(device_centers, host_centers, 2e-5)


@pytest.mark.parametrize("loss", ["filtered curricularface", "curricularface", "filtered arcface"])
def test_parts_of_the_logits_and_blocks_of_rows_change_no_bit(loss, monkeypatch):
    settings = (1, 61, ADAPTIVE_LOSSES[loss], 64.0, 0.3, 3)
    whole, whole_centers = train_sharded(*settings, rows_of=device_rows_in_one_block)
    # Five of the twelve samples at a time.
    monkeypatch.setattr(device_module, "PART_BYTES", 4 * 5 * 18)
    cut, cut_centers = train_sharded(*settings, rows_of=device_rows)
    for one, other in zip(whole, cut):
        assert one[0] == other[0] and np.array_equal(one[1], other[1])
    assert np.array_equal(whole_centers, cut_centers)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("rows_of", [HostRows, device_rows], ids=["host", "device"])
@pytest.mark.parametrize("decoupled", [False, True], ids=["adam", "adamw"])
def test_three_steps_of_adam_equal_the_reference(world_size, rows_of, decoupled):
    optimizer = Adam(weight_decay=0.1, decoupled=decoupled)
    steps, centers = train_sharded(
        world_size, 61, LOSSES["arcface"], 16.0, 0.3, 3, rows_of, optimizer, lr=1e-3
    )
    expected, expected_centers = train_reference(
        61, LOSSES["arcface"], 16.0, [step[2] for step in steps], optimizer, lr=1e-3
    )
    for (losses, gradient, _), step in zip(steps, expected):
        assert_close(np.array(losses), step.loss, 2e-5)
        assert_close(gradient, step.features_gradient, 2e-5)
    assert_close(centers, expected_centers, 2e-5)


@pytest.mark.parametrize("world_size", [1, 2])
def test_positives_beyond_the_sample_size_are_kept(world_size):
    """More positives than the ratio allows: the softmax is over all of them, and all move."""
    num_classes, ratio, loss = 40, 0.05, LOSSES["softmax"]
    labels = np.arange(GLOBAL_BATCH) * 3
    features = np.random.default_rng(1).normal(size=(GLOBAL_BATCH, EMBEDDING)).astype(np.float32)

    def rank_main(world: ThreadWorld):
        head = make_head(world, num_classes, loss, 1.0, ratio)
        assert head._sampler.num_rows < GLOBAL_BATCH // world.size
        batch = GLOBAL_BATCH // world.size
        own = slice(world.rank * batch, (world.rank + 1) * batch)
        step = head.step(mx.nd.array(features[own]), labels[own], 0, LR)
        return step.loss.asscalar(), step.gradient.asnumpy(), head.rows.export()["centers"]

    before = drawn_centers(Shard(0, 1, num_classes), EMBEDDING, seed=5)
    expected = reference_step(features, labels, before, labels, MARGINS["softmax"], 1.0)
    losses, gradients, centers = zip(*run_ranks(world_size, rank_main))
    assert losses == pytest.approx([expected.loss] * world_size, rel=1e-6)
    assert_close(np.concatenate(gradients), expected.features_gradient, 1e-5)
    moved = (np.concatenate(centers) != before).any(axis=1)
    assert np.flatnonzero(moved).tolist() == labels.tolist()


@needs_bfloat16
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("loss", ["arcface", "cosface"])
@pytest.mark.parametrize("scale", [1.0, 64.0])
@pytest.mark.parametrize("block_rows", [blocks.BLOCK_ROWS, 7, 6])
def test_bfloat16_products_stay_near_the_reference(
    world_size, loss, scale, block_rows, monkeypatch
):
    """A product keeps eight bits: a logit of 64 is off by up to 0.125, its probability by 13 %."""
    # A rank has 9 or 18 sampled rows: also blocks of which the last has fewer, or as many.
    monkeypatch.setattr(blocks, "BLOCK_ROWS", block_rows)
    loss = LOSSES[loss]
    steps, centers = train_sharded(
        world_size, 61, loss, scale, 0.3, updates=3, dtype="bfloat16"
    )
    expected, expected_centers = train_reference(61, loss, scale, [step[2] for step in steps])
    for (losses, gradient, _), step in zip(steps, expected):
        assert_close(np.array(losses), step.loss, 0.01)
        assert_close(gradient, step.features_gradient, 0.01 if scale == 1.0 else 0.13)
    assert_close(centers, expected_centers, 0.01)
    # That it was bfloat16 at all shows in differences that float32 does not have.
    assert np.abs(centers - expected_centers).max() > 1e-4 * np.abs(expected_centers).max()


@pytest.mark.parametrize(
    ("unit", "expected"), [*((unit, "bfloat16") for unit in Bfloat16Unit), (None, "float32")]
)
def test_bfloat16_falls_back_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    unit: Optional[Bfloat16Unit],
    expected: str,
) -> None:
    monkeypatch.setattr(head, "bfloat16_unit", lambda: unit)
    assert usable_dtype("bfloat16", mx.cpu()) == expected
    assert ("computes in float32" in caplog.text) == (unit is None)
    assert usable_dtype("float32", mx.cpu()) == "float32"


def test_bfloat16_is_refused_on_a_gpu() -> None:
    with pytest.raises(ConfigError, match="--head-dtype bfloat16 is for CPUs"):
        usable_dtype("bfloat16", mx.gpu(0))
