"""bfloat16 in NumPy and in kernels against MXNet's own conversion."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.toolkit_head import OneRank
from partial_fc import bfloat16
from partial_fc.bfloat16 import narrowed, widened
from partial_fc.head import PartialFC
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from runtime.compiled import parallel_kernel, prange
from runtime.mxnet import mx
from runtime.ndarray import BFLOAT16, memory

CLASSES, EMBEDDING = 400, 128


@parallel_kernel
def _narrow_all(values, out):
    for i in prange(values.size):
        out[i] = narrowed(values[i], out)


@parallel_kernel
def _widen_all(values, out):
    for i in prange(values.size):
        out[i] = widened(values[i])


@pytest.fixture(scope="module")
def values():
    generator = np.random.default_rng(0)
    spread = generator.normal(size=1000) * 10.0 ** generator.integers(-30, 30, size=1000)
    # 1 + 2^-8 lies between two numbers of 8 bits and goes to the even one, 1; 1 + 3 * 2^-8 goes up.
    ties = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0.0, -0.0, np.inf, -np.inf, 1e-40]
    return np.concatenate([spread, ties]).astype(np.float32)


def test_both_round_as_mxnet_does(values):
    array = mx.nd.amp_cast(mx.nd.array(values), dtype=BFLOAT16)
    theirs = memory(array)
    compiled = np.empty(values.size, np.uint16)
    _narrow_all(values, compiled)
    normal = np.abs(values) > 1e-38
    assert np.array_equal(compiled[normal], theirs[normal])
    assert np.array_equal(bfloat16.from_float32(values, compiled.dtype), compiled)


def test_both_widen_exactly(values):
    halves = bfloat16.from_float32(values, np.dtype(np.uint16))
    compiled = np.empty(values.size, np.float32)
    _widen_all(halves, compiled)
    assert np.array_equal(compiled, bfloat16.to_float32(halves))
    finite = np.isfinite(values) & (np.abs(values) > 1e-38)
    assert compiled[finite] == pytest.approx(values[finite], rel=2**-8)
    assert compiled[-8:-3].tolist() == [1.0, 1 + 2**-6, -1.0, 0.0, 0.0]


def test_float32_passes_through(values):
    assert bfloat16.to_float32(values) is values
    assert bfloat16.from_float32(values, values.dtype) is values
    same = np.empty_like(values)
    _narrow_all(values, same)
    assert np.array_equal(same, values)


def test_nan_stays_nan():
    out = np.empty(1, np.uint16)
    _narrow_all(np.array([np.nan], np.float32), out)
    assert np.isnan(bfloat16.to_float32(out)).all()


def test_training_centers_in_bfloat16_loses_nothing():
    """500 updates on features with noise: loss within 1 % of float32, accuracy within 0.01."""

    def train(dtype):
        head = PartialFC.create(
            HeadOptions(margins=(1, 0, 0.2), scale=32.0, head_dtype=dtype, sample_ratio=0.5),
            (CLASSES, EMBEDDING), OneRank(), mx.cpu(), optimizer=SGD(0.9, 5e-4), seed=1,
        )  # fmt: skip
        generator = np.random.default_rng(3)
        prototypes = generator.normal(size=(CLASSES, EMBEDDING))
        losses = []
        for update in range(500):
            labels = generator.integers(CLASSES, size=128)
            noise = 1.5 * generator.normal(size=(128, EMBEDDING))
            features = mx.nd.array(prototypes[labels] + noise)
            lr = 0.1 * (1 - update / 500) ** 2
            losses.append(head.step(features, labels, update, lr).loss.asscalar())
        labels = generator.integers(CLASSES, size=2000)
        features = prototypes[labels] + 1.5 * generator.normal(size=(2000, EMBEDDING))
        centers = head.rows.export()["centers"]
        units = centers / np.linalg.norm(centers, axis=1, keepdims=True)
        return np.array(losses), np.mean((features @ units.T).argmax(axis=1) == labels)

    losses, accuracy = train("float32")
    halved_losses, halved_accuracy = train("bfloat16")
    assert losses[-50:].mean() < 0.4 * losses[:5].mean() and accuracy > 0.9
    assert np.abs(halved_losses / losses - 1).max() < 0.01
    assert abs(halved_accuracy - accuracy) < 0.01
