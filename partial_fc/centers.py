"""The initial class centers: a function of the class id and the seed, not of the rank.

MXNet seeds every process alike, so drawing from its generator would give all ranks the same
centers; and a run on another number of ranks has to start from the same ones. Each block of
classes therefore has a generator of its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from partial_fc.shard import Shard

_BLOCK = 1024
_STDDEV = 0.01


def initial_centers(shard: Shard, embedding_size: int, seed: int) -> NDArray[np.float32]:
    """Draw the centers of a shard from N(0, 0.01): float32 [shard.size, embedding_size]."""
    centers = np.empty((shard.size, embedding_size), dtype=np.float32)
    for block in range(shard.start // _BLOCK, -(-shard.stop // _BLOCK)):
        values = np.random.default_rng((seed, block)).standard_normal(
            (_BLOCK, embedding_size), dtype=np.float32
        )
        start = max(shard.start, block * _BLOCK)
        stop = min(shard.stop, (block + 1) * _BLOCK)
        centers[start - shard.start : stop - shard.start] = values[
            start - block * _BLOCK : stop - block * _BLOCK
        ]
    centers *= np.float32(_STDDEV)
    return centers
