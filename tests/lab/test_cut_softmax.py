"""The softmax that is cut by hand is that of ``partial_fc``, on one, two and three ranks."""

from __future__ import annotations

import numpy as np
import pytest

from docs.lab import cut_softmax
from partial_fc.head import PartialFC
from partial_fc.initial import initial_centers
from partial_fc.margin import CombinedMargin
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from partial_fc.rows.host import HostRows
from partial_fc.shard import Sampler, Shard
from runtime.mxnet import mx
from tests.support.thread_world import ThreadWorld, run_ranks

pytestmark = pytest.mark.documents

CLASSES, EMBEDDING, BATCH, LR = 101, 24, 12, 0.3
SCALE, MARGIN = 64.0, 0.35


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_it_is_one_step_of_the_head(ranks: int) -> None:
    rng = np.random.default_rng(3)
    features = np.array_split(rng.normal(size=(BATCH, EMBEDDING)) * 3, ranks)
    # Two of one class.
    numbers = rng.integers(CLASSES, size=BATCH - 1)
    labels = np.array_split(np.append(numbers[:1], numbers), ranks)

    def rank_main(world: ThreadWorld):
        shard = Shard(world.rank, world.size, CLASSES)
        centers = initial_centers(shard, EMBEDDING, seed=5)
        head = PartialFC(
            HeadOptions(scale=SCALE),
            CombinedMargin(1.0, 0.0, MARGIN),
            HostRows(centers.copy(), SGD(momentum=0.0, weight_decay=0.0)),
            Sampler(shard, 1.0, seed=11),
            shard,
            world,
        )
        own = mx.nd.array(features[world.rank], dtype="float32")
        step = head.step(own, labels[world.rank], 0, LR)
        after = head.rows.export()["centers"]
        return centers, step.loss.asscalar(), step.gradient.asnumpy(), (centers - after) / LR

    found = run_ranks(ranks, rank_main)
    loss, of_features, of_centers = cut_softmax.cut_step(
        features, labels, [centers.astype(np.float64) for centers, *_ in found], SCALE, MARGIN
    )
    for rank, (_, its_loss, gradient, moved) in enumerate(found):
        assert its_loss == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(gradient, of_features[rank], rtol=2e-4, atol=1e-6)
        largest = np.abs(of_centers[rank]).max()
        np.testing.assert_allclose(moved, of_centers[rank], rtol=2e-3, atol=1e-4 * largest)
