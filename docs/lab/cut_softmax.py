"""The softmax over all class centers, cut over ranks by hand, in NumPy.

    python docs/lab/cut_softmax.py

Exercise 3 of the lab. A rank is a place in a list here, so everything fits into one process, and
what ranks send each other is seen in three places. ``tests/lab`` compares the result with
``partial_fc``, which does the same with samples, other margins and in place.

Shapes: b batch of a rank, B global batch, D embedding, C classes, S of them on a rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def unit(rows: Array) -> Array:
    """Rows of length 1."""
    units: Array = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return units


def through_norm(gradient: Array, rows: Array) -> Array:
    """From the gradient of ``unit(rows)`` to that of ``rows``: the part along a row is nothing."""
    units = unit(rows)
    along = np.sum(gradient * units, axis=1, keepdims=True)
    through: Array = (gradient - along * units) / np.linalg.norm(rows, axis=1, keepdims=True)
    return through


def cut_step(
    features: Sequence[Array],
    labels: Sequence[NDArray[np.int64]],
    shards: Sequence[Array],
    scale: float = 64.0,
    margin: float = 0.35,
) -> tuple[float, list[Array], list[Array]]:
    """Loss and gradients of CosFace (arXiv:1801.09414), with each rank's part in a list.

    Args:
        features: [b, D] of each rank.
        labels: [b] of each rank, counted over all classes.
        shards: the class centers [S, D] of each rank.
        scale: on the cosines.
        margin: taken off the cosine of the target.

    Returns:
        The mean loss of the global batch, the gradients of each rank's features, and those of its
        centers.
    """
    # 1. allgather: every rank gets the features and labels of all.
    units_BD, labels_B = np.concatenate([unit(rows) for rows in features]), np.concatenate(labels)
    ends = np.cumsum([len(shard) for shard in shards])
    logits, is_target = [], []
    for end, shard in zip(ends, shards):
        is_target.append(labels_B[:, None] == np.arange(end - len(shard), end))
        logits.append(scale * (units_BD @ unit(shard).T - margin * is_target[-1]))
    # 2. allreduce of three numbers per image: the maximum, the denominator, the target's logit.
    maximum_B = np.max([part.max(axis=1) for part in logits], axis=0)
    weights = [np.exp(part - maximum_B[:, None]) for part in logits]
    denominator_B = np.sum([part.sum(axis=1) for part in weights], axis=0)
    target_B = np.sum([np.sum(part * own, axis=1) for part, own in zip(logits, is_target)], axis=0)
    loss = float(np.mean(np.log(denominator_B) + maximum_B - target_B))
    slopes = [
        scale / len(labels_B) * (part / denominator_B[:, None] - own)
        for part, own in zip(weights, is_target)
    ]
    # 3. allreduce: each rank knows what its own centers add to the gradient of every feature.
    gradient_BD = np.sum([part @ unit(shard) for part, shard in zip(slopes, shards)], axis=0)
    own_rows = np.split(gradient_BD, np.cumsum([len(rows) for rows in features])[:-1])
    of_features = [through_norm(part, rows) for part, rows in zip(own_rows, features)]
    # The centers need nothing from other ranks.
    of_centers = [through_norm(part.T @ units_BD, shard) for part, shard in zip(slopes, shards)]
    return loss, of_features, of_centers


def main() -> None:
    """Cut 1,000 classes over one, two and three ranks, and compare."""
    rng = np.random.default_rng(0)
    features, centers = rng.normal(size=(12, 64)), rng.normal(size=(1000, 64))
    labels = rng.integers(1000, size=12)
    whole = None
    for ranks in (1, 2, 3):
        shards = np.array_split(centers, ranks)
        loss, *gradients = cut_step(
            np.array_split(features, ranks), np.array_split(labels, ranks), shards
        )
        joined = [np.concatenate(parts) for parts in gradients]
        whole = joined if whole is None else whole
        furthest = max(float(np.abs(a - b).max()) for a, b in zip(joined, whole))
        sizes = ", ".join(str(len(shard)) for shard in shards)
        same = "furthest gradient from that of one rank below 1e-12" if furthest < 1e-12 else "NO"
        print(f"{ranks} ranks, shards of {sizes}: loss {loss:.4f}, {same}")


if __name__ == "__main__":
    main()
