"""Shards cover the classes once and evenly; initial centers do not depend on the shards."""

from __future__ import annotations

import numpy as np
import pytest

from partial_fc.initial import initial_centers
from partial_fc.shard import Shard


@pytest.mark.parametrize("num_classes", [1, 7, 8, 9, 1000, 360_232])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 64])
def test_shards_partition_the_classes(num_classes, world_size):
    shards = [Shard(rank, world_size, num_classes) for rank in range(world_size)]
    assert shards[0].start == 0 and shards[-1].stop == num_classes
    assert all(one.stop == other.start for one, other in zip(shards, shards[1:]))
    sizes = [shard.size for shard in shards]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


def test_shards_by_hand():
    assert [(s.start, s.stop) for s in (Shard(r, 3, 8) for r in range(3))] == [
        (0, 3),
        (3, 6),
        (6, 8),
    ]


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_any_number_of_ranks_gives_the_same_centers(world_size):
    whole = initial_centers(Shard(0, 1, 2600), 8, seed=1)
    parts = [initial_centers(Shard(rank, world_size, 2600), 8, 1) for rank in range(world_size)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_distribution_of_initial_centers():
    centers = initial_centers(Shard(0, 1, 5000), 64, seed=2)
    assert centers.dtype == np.float32
    assert abs(centers.mean()) < 1e-4
    assert centers.std() == pytest.approx(0.01, rel=0.01)
    assert np.unique(centers[:, 0]).size == 5000, "two classes share a center"


def test_seeds_give_different_centers():
    shard = Shard(0, 1, 10)
    assert not np.array_equal(initial_centers(shard, 4, 0), initial_centers(shard, 4, 1))
