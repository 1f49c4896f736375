"""A small head on ranks that are threads, its batches, and a loss with what it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from partial_fc.head import PartialFC
from partial_fc.optimizers import SGD
from partial_fc.options import HeadOptions
from partial_fc.rows.host import HostRows
from partial_fc.shard import Sampler, Shard
from runtime.mxnet import mx
from tests.support.thread_world import ThreadWorld, run_ranks

EMBEDDING = 24
GLOBAL_BATCH = 12
LR = 0.3
SGD_09 = SGD(momentum=0.9, weight_decay=5e-4)


@dataclass(frozen=True)
class Loss:
    """A loss under test: the head's margin, the reference's, the inter-class filter, the features.

    From the first image of a batch to the last the standard deviation of the features grows from
    one number to the other; the norms are about 4.9 times as large.
    """

    margin: Callable[[], Any]
    reference: Callable[[], Any]
    filter_threshold: float = 1.0
    deviations: tuple[float, float] = (3.0, 3.0)


def make_batches(num_classes, updates, deviations=(3.0, 3.0)):
    generator = np.random.default_rng(3)
    factors = np.linspace(deviations[0], deviations[1], GLOBAL_BATCH, dtype=np.float32)[:, None]
    for _ in range(updates):
        features = generator.normal(size=(GLOBAL_BATCH, EMBEDDING)).astype(np.float32) * factors
        labels = generator.integers(num_classes, size=GLOBAL_BATCH)
        labels[1] = labels[0]  # a class that occurs twice
        yield features, labels


def drawn_centers(shard, embedding_size, seed):
    """Of which the tolerances are known: rounding depends on the numbers."""
    generator = np.random.default_rng((seed, 0))
    drawn = generator.standard_normal((1024, embedding_size), dtype=np.float32)
    return drawn[shard.start : shard.stop] * np.float32(0.01)


def make_head(
    world, num_classes, loss, scale, ratio, rows_of=HostRows, optimizer=SGD_09, dtype="float32"
):
    shard = Shard(world.rank, world.size, num_classes)
    return PartialFC(
        HeadOptions(scale=scale, filter_threshold=loss.filter_threshold, head_dtype=dtype),
        loss.margin(),
        rows_of(drawn_centers(shard, EMBEDDING, seed=5), optimizer),
        Sampler(shard, ratio, seed=11),
        shard,
        world,
    )


def train_sharded(
    world_size,
    num_classes,
    loss,
    scale,
    ratio,
    updates,
    rows_of=HostRows,
    optimizer=SGD_09,
    lr=LR,
    dtype="float32",
):
    """Losses, feature gradients of the global batch, and the sampled classes of each update."""

    def rank_main(world: ThreadWorld):
        head = make_head(world, num_classes, loss, scale, ratio, rows_of, optimizer, dtype)
        sampler = Sampler(head.shard, ratio, seed=11)
        batch = GLOBAL_BATCH // world.size
        own = slice(world.rank * batch, (world.rank + 1) * batch)
        steps = []
        batches = make_batches(num_classes, updates, loss.deviations)
        context = mx.cpu() if rows_of is HostRows else mx.cpu(1)
        for update, (features, labels) in enumerate(batches):
            step = head.step(mx.nd.array(features[own], ctx=context), labels[own], update, lr)
            assert step.loss.context == step.gradient.context == context
            sampled = sampler.sample(labels, update).rows + head.shard.start
            steps.append((float(step.loss.asscalar()), step.gradient.asnumpy(), sampled))
        return steps, head.rows.export()

    ranks = run_ranks(world_size, rank_main)
    centers = np.concatenate([rank[1]["centers"] for rank in ranks])
    steps = [
        (
            [rank[0][update][0] for rank in ranks],
            np.concatenate([rank[0][update][1] for rank in ranks]),
            np.concatenate([rank[0][update][2] for rank in ranks]),
        )
        for update in range(updates)
    ]
    return steps, centers
