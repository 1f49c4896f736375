"""The head's loss and gradient for a few classes along the axes, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from partial_fc.head import PartialFC
from partial_fc.margin import CombinedMargin, CurricularFace
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from partial_fc.rows.host import HostRows
from partial_fc.shard import Sampler, Shard
from runtime.mxnet import mx
from tests.support.reference_head import reference_step
from tests.support.thread_world import ThreadWorld, run_ranks


def one_step(centers, features, label, scale, margin, filter_threshold=1.0):
    """The first step of a head on one rank that uses all classes."""

    def rank_main(world: ThreadWorld):
        shard = Shard(0, 1, len(centers))
        head = PartialFC(
            HeadOptions(scale=scale, filter_threshold=filter_threshold),
            margin,
            HostRows(np.array(centers, dtype=np.float32), SGD(0.0, 0.0)),
            Sampler(shard, 1.0, seed=0),
            shard,
            world,
        )
        return head.step(mx.nd.array(features), np.array([label]), 0, 0.0)

    return run_ranks(1, rank_main)[0]


def test_loss_and_gradient():
    """Two classes along the axes, one sample on the first: cosines 1 and 0, CosFace 0.35, s = 2."""
    step = one_step(np.eye(2), [[5.0, 0.0]], 0, 2.0, CombinedMargin(m3=0.35))
    # -log(e^1.3 / (e^1.3 + e^0)) = log(1 + e^-1.3); the gradient across the feature is
    # s · p(other) · 1 / |feature| along the second axis and nothing along the first.
    assert step.loss.asscalar() == pytest.approx(np.log1p(np.exp(-1.3)), rel=1e-6)
    other = np.exp(-1.3) / (1 + np.exp(-1.3))
    assert step.gradient.asnumpy() == pytest.approx(np.array([[0.0, 2 * other / 5]]), abs=1e-6)


def test_filter():
    """Cosines 0.6 (target), 0.8 and 0, s = 2: above 0.7 is left out, at the target is not."""
    step = one_step(np.eye(3), [[0.6, 0.8, 0.0]], 0, 2.0, CombinedMargin(), 0.7)
    assert step.loss.asscalar() == pytest.approx(np.log(1 + np.exp(-1.2)), rel=1e-6)
    kept = one_step(np.eye(3), [[0.6, 0.8, 0.0]], 1, 2.0, CombinedMargin(), 0.7)
    total = np.exp(1.6) + np.exp(1.2) + 1
    assert kept.loss.asscalar() == pytest.approx(np.log(total) - 1.6, rel=1e-6)


def test_hard_negatives():
    """Cosines 0.6 (target), 0.8 and 0, s = 2, no margin: 0.8 is hard, t = 0.01 · 0.6."""
    step = one_step(np.eye(3), [[0.6, 0.8, 0.0]], 0, 2.0, CurricularFace(m=0.0))
    hard = 2 * 0.8 * (0.006 + 0.8)
    total = np.exp(1.2) + np.exp(hard) + 1
    assert step.loss.asscalar() == pytest.approx(np.log(total) - 1.2, rel=1e-5)
    # By the cosines: s · (p − 1) for the target, s · p · (t + 2c) for the hard negative.
    units = np.array([0.6, 0.8, 0.0])
    slopes = [2 * (np.exp(1.2) / total - 1), 2 * np.exp(hard) / total * 1.606, 2 / total]
    expected = np.array(slopes) - np.dot(slopes, units) * units
    assert step.gradient.asnumpy()[0] == pytest.approx(expected, abs=1e-5)


def test_confident_targets_keep_exact_gradients():
    """With the target's probability near 1, the gradient is tiny but not rounded away."""
    centers = np.eye(4, dtype=np.float32)
    features = np.array([[1.0, 0.02, 0.0, 0.0]], dtype=np.float32)
    step = one_step(centers, features, 0, 30.0, CombinedMargin())
    expected = reference_step(
        features, np.array([0]), centers, np.arange(4), (1.0, 0.0, 0.0), 30.0
    ).features_gradient
    assert np.abs(expected).max() < 1e-9
    error = np.abs(step.gradient.asnumpy() - expected).max()
    assert error <= 1e-3 * np.abs(expected).max()
