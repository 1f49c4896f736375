"""Initial centers depend on class id and seed, not on the cut into shards."""

from __future__ import annotations

import numpy as np
import pytest

from partial_fc.centers import initial_centers
from partial_fc.shard import Shard


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_any_cut_gives_the_same_centers(world_size):
    whole = initial_centers(Shard(0, 1, 2600), 8, seed=1)
    parts = [initial_centers(Shard(rank, world_size, 2600), 8, 1) for rank in range(world_size)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_distribution():
    centers = initial_centers(Shard(0, 1, 5000), 64, seed=2)
    assert centers.dtype == np.float32
    assert abs(centers.mean()) < 1e-4
    assert centers.std() == pytest.approx(0.01, rel=0.01)
    assert np.unique(centers[:, 0]).size == 5000, "two classes share a center"


def test_seeds_differ():
    shard = Shard(0, 1, 10)
    assert not np.array_equal(initial_centers(shard, 4, 0), initial_centers(shard, 4, 1))
