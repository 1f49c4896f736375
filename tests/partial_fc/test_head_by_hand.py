"""The head's loss and gradient for a few classes along the axes, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from parallel.world import LoneWorld
from partial_fc.head import PartialFC
from partial_fc.margin import CombinedMargin, CurricularFace
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from partial_fc.rows.host import HostRows
from partial_fc.shard import Sampler, Shard
from runtime.mxnet import mx
from tests.support.reference_head import reference_step


def one_step(classes, feature, label, scale, margin, filter_threshold=1.0):
    """Loss and gradient of one image at centers along the axes."""
    shard, centers = Shard(0, 1, classes), np.eye(classes, len(feature), dtype=np.float32)
    options = HeadOptions(scale=scale, filter_threshold=filter_threshold)
    rows, sampler = HostRows(centers, SGD(0.0, 0.0)), Sampler(shard, 1.0, seed=0)
    head = PartialFC(options, margin, rows, sampler, shard, LoneWorld())
    step = head.step(mx.nd.array([feature]), np.array([label]), 0, 0.0)
    return step.loss.asscalar(), step.gradient.asnumpy()[0]


def test_cosface():
    """Cosines 1 and 0, margin 0.35, s = 2."""
    loss, gradient = one_step(2, [5.0, 0.0], 0, 2.0, CombinedMargin(m3=0.35))
    # -log(e^1.3 / (e^1.3 + e^0)) = log(1 + e^-1.3); the gradient across the feature is
    # s · p(other) · 1 / |feature| along the second axis and nothing along the first.
    assert loss == pytest.approx(np.log1p(np.exp(-1.3)), rel=1e-6)
    other = np.exp(-1.3) / (1 + np.exp(-1.3))
    assert gradient == pytest.approx([0.0, 2 * other / 5], abs=1e-6)


def test_filter():
    """Cosines 0.6, 0.8 and 0, s = 2: above 0.7 is left out, but for the target."""
    loss, _ = one_step(3, [0.6, 0.8, 0.0], 0, 2.0, CombinedMargin(), 0.7)
    assert loss == pytest.approx(np.log(1 + np.exp(-1.2)), rel=1e-6)
    loss, _ = one_step(3, [0.6, 0.8, 0.0], 1, 2.0, CombinedMargin(), 0.7)
    assert loss == pytest.approx(np.log(np.exp(1.6) + np.exp(1.2) + 1) - 1.6, rel=1e-6)


def test_hard_negatives():
    """Cosines 0.6 (target), 0.8 and 0, s = 2, no margin: 0.8 is hard, t = 0.01 · 0.6."""
    loss, gradient = one_step(3, [0.6, 0.8, 0.0], 0, 2.0, CurricularFace(m=0.0))
    hard = 2 * 0.8 * (0.006 + 0.8)
    total = np.exp(1.2) + np.exp(hard) + 1
    assert loss == pytest.approx(np.log(total) - 1.2, rel=1e-5)
    # By the cosines: s · (p − 1) for the target, s · p · (t + 2c) for the hard negative.
    units = np.array([0.6, 0.8, 0.0])
    slopes = [2 * (np.exp(1.2) / total - 1), 2 * np.exp(hard) / total * 1.606, 2 / total]
    assert gradient == pytest.approx(slopes - np.dot(slopes, units) * units, abs=1e-5)


def test_confident_targets_keep_exact_gradients():
    """With the target's probability near 1, the gradient is tiny but not rounded away."""
    feature = np.array([1.0, 0.02, 0.0, 0.0], np.float32)
    _, gradient = one_step(4, feature, 0, 30.0, CombinedMargin())
    reference = reference_step(
        feature[np.newaxis], np.array([0]), np.eye(4), np.arange(4), (1.0, 0.0, 0.0), 30.0
    )
    (expected,) = reference.features_gradient
    assert np.abs(expected).max() < 1e-9
    assert np.abs(gradient - expected).max() <= 1e-3 * np.abs(expected).max()
