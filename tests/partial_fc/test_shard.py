"""Shards cover the classes once, without gaps, and differ by at most one class."""

from __future__ import annotations

import pytest

from partial_fc.shard import Shard


@pytest.mark.parametrize("num_classes", [1, 7, 8, 9, 1000, 360_232])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 64])
def test_shards_partition_the_classes(num_classes, world_size):
    shards = [Shard(rank, world_size, num_classes) for rank in range(world_size)]
    assert shards[0].start == 0 and shards[-1].stop == num_classes
    assert all(one.stop == other.start for one, other in zip(shards, shards[1:]))
    sizes = [shard.size for shard in shards]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


def test_by_hand():
    assert [(s.start, s.stop) for s in (Shard(r, 3, 8) for r in range(3))] == [
        (0, 3),
        (3, 6),
        (6, 8),
    ]
