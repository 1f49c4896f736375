"""A head whose class centers are in a store, and runs of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest

from parallel.world import LoneWorld
from partial_fc.head import PartialFC
from partial_fc.optimizers import SGD, Adam, RowOptimizer
from partial_fc.options import HeadOptions
from partial_fc.store.header import Origin
from partial_fc.store.saved_rows import SavedRows
from runtime.errors import DataError
from runtime.mxnet import mx
from tests.support.thread_world import run_ranks

CLASSES, EMBEDDING, BATCH, LR = 1000, 24, 32, 0.1
MOMENTUM = SGD(0.9, 1e-4)
ADAM = Adam(1e-3, decoupled=False)
LONE = LoneWorld()


def saved(origin: Origin, update: int, run: Path = Path("run"), others: Any = None) -> Any:
    """What a checkpoint says of a store alone; ``others`` are the values in those of other runs."""
    values, others = origin.values(), others or {}
    return SimpleNamespace(
        update=update, run=run, names=list, has=values.__contains__, count=values.__getitem__,
        values_in=lambda run: others.get(run, []),
    )  # fmt: skip


def create(
    world: Any, store: Optional[Path], rule: RowOptimizer = MOMENTUM, ratio: float = 0.3, **more
) -> PartialFC:
    options = HeadOptions(sample_ratio=ratio, center_store=str(store) if store else None, **more)
    shape = CLASSES, EMBEDDING
    return PartialFC.create(options, shape, world, mx.cpu(), optimizer=rule, seed=4)


def batch(world: Any, update: int) -> tuple[Any, Any]:
    """This rank's part of an update's batch; one class is in all of them."""
    generator = np.random.default_rng((1, update))
    features = generator.standard_normal((BATCH, EMBEDDING), dtype=np.float32)
    labels = generator.integers(0, CLASSES, BATCH)
    labels[3] = 5
    size = BATCH // world.size
    own = slice(world.rank * size, (world.rank + 1) * size)
    return mx.nd.array(features[own]), labels[own]


def advance(
    world: Any, head: PartialFC, start: int, stop: int, *, ahead: bool = True
) -> list[tuple[float, Any]]:
    """Make updates as the training loop does; returns their losses and gradients."""
    results = []
    for update in range(start, stop):
        if ahead and update + 1 < stop:
            head.prepare(batch(world, update + 1)[1], update + 1)
        features, labels = batch(world, update)
        step = head.step(features, labels, update, LR)
        results.append((float(step.loss.asscalar()), step.gradient.asnumpy()))
    return results


@contextmanager
def stored(world: Any, folder: Path, *rule_and_ratio: Any, **further: Any) -> Iterator[PartialFC]:
    head = create(world, folder, *rule_and_ratio, **further)
    with closing(head.rows):
        yield head


def reference(
    updates: int, rule: RowOptimizer = MOMENTUM, ranks: int = 1, ratio: float = 0.3
) -> dict[str, Any]:
    """What the head in memory has after some updates: the arrays of all ranks."""

    def run(world: Any) -> Any:
        head = create(world, None, rule, ratio)
        advance(world, head, 0, updates)
        return head.rows.export()

    return joined(run_ranks(ranks, run))


def trained(
    *folders: Path, updates: int = 8, rule: RowOptimizer = MOMENTUM, ratio: float = 0.3
) -> Origin:
    """Ranks with these folders make checkpoints of every fourth update, and updates behind it."""

    def run(world: Any) -> Origin:
        with stored(world, folders[world.rank], rule, ratio) as head:
            for update in range(0, updates + 1, 4):
                state = head.export_state(update)
                advance(world, head, update, update + 4)
        return Origin(*state.values.values())

    return run_ranks(len(folders), run)[0]


def restored(
    origin: Origin, update: int, *folders: Path, stop: int = 0, ratio: float = 0.3
) -> dict[str, Any]:
    """The rows to which ranks with these folders go back, and train on up to ``stop``."""

    def run(world: Any) -> Any:
        with stored(world, folders[world.rank], MOMENTUM, ratio) as head:
            head.load_state(saved(origin, update))
            advance(world, head, update, stop)
            return head.rows.export()

    return joined(run_ranks(len(folders), run))


def refused(match: str, origin: Origin, update: int, *folders: Path) -> None:
    """Assert that a run with these folders, and who reads the first, refuse the store in a line."""

    def verify() -> None:
        with SavedRows(folders[0], origin, update) as rows:
            rows.verify()

    for use in (lambda: restored(origin, update, *folders), verify):
        with pytest.raises(DataError, match=match) as raised:
            use()
        assert "\n" not in str(raised.value) and str(folders[0]) in str(raised.value)


def joined(shards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([shard[name] for shard in shards]) for name in shards[0]}


def are_equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    same = [np.array_equal(array, other[name]) for name, array in one.items()]
    return one.keys() == other.keys() and all(same)


def damage(path: Path, where: int) -> None:
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
