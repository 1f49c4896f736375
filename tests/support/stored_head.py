"""A head whose class centers are in a store, and runs of it; also a process to be killed.

python -m tests.support.stored_head FOLDER PROGRESS UPDATES
python -m tests.support.stored_head reference UPDATES FILE
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from typing_extensions import override

from partial_fc.head import PartialFC
from partial_fc.optimizers import SGD, Adam, RowOptimizer
from partial_fc.options import HeadOptions
from partial_fc.store.header import ATTEMPT, STORE, Origin
from runtime.mxnet import mx
from runtime.state import Saved
from tests.support.thread_world import run_ranks

CLASSES, EMBEDDING, BATCH, LR = 1000, 24, 32, 0.1
INTERVAL = 4
MOMENTUM = SGD(0.9, 1e-4)
ADAM = Adam(1e-3, decoupled=False)


class SavedStore(Saved):
    """What a checkpoint says of a store, and nothing else."""

    def __init__(
        self, origin: Origin, update: int, run: Path = Path("run"), others: Any = None
    ) -> None:
        """Args: run: the folder of the run; others: the values in checkpoints of other runs."""
        self._values, self._update = origin.values(), update
        self._run, self._others = run, others or {}

    @property
    @override
    def update(self) -> int:
        return self._update

    @property
    @override
    def run(self) -> Path:
        return self._run

    @override
    def values_in(self, run: Path) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = self._others.get(run, [])
        return found

    @override
    def names(self) -> list[str]:
        return []

    @override
    def has(self, name: str) -> bool:
        return name in (STORE, ATTEMPT)

    @override
    def count(self, name: str) -> int:
        return self._values[name]

    @override
    def replicated(self, name: str, shape: tuple[int, ...]) -> Any:
        raise AssertionError(name)

    @override
    def own(self, name: str, shape: tuple[int, ...]) -> Any:
        raise AssertionError(name)

    @override
    def pieces(
        self, name: str, start: int, stop: int, total: int, row_shape: tuple[int, ...]
    ) -> Any:
        raise AssertionError(name)

    @override
    def number(self, name: str) -> float:
        raise AssertionError(name)

    @override
    def numbers(self, name: str) -> dict[str, float]:
        raise AssertionError(name)


def create(
    world: Any,
    store: Optional[Path],
    rule: RowOptimizer = MOMENTUM,
    ratio: float = 0.3,
    **further: Any,
) -> PartialFC:
    options = HeadOptions(sample_ratio=ratio, center_store=str(store) if store else None, **further)
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


def reference(updates: int, rule: RowOptimizer = MOMENTUM, ranks: int = 1) -> dict[str, Any]:
    """What the head in memory has after some updates: the arrays of all ranks."""

    def run(world: Any) -> Any:
        head = create(world, None, rule)
        advance(world, head, 0, updates)
        return head.rows.export()

    return joined(run_ranks(ranks, run))


def joined(shards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([shard[name] for shard in shards]) for name in shards[0]}


def are_equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    same = [np.array_equal(array, other[name]) for name, array in one.items()]
    return one.keys() == other.keys() and all(same)


def restored(world: Any, folder: Path, saved: SavedStore) -> Any:
    head = create(world, folder)
    head.load_state(saved)
    arrays = head.rows.export()
    head.rows.close()
    return arrays


def trained(folder: Path, updates: int = 8) -> Origin:
    """A store with checkpoints of every fourth update; returns their origin."""

    def run(world: Any) -> Origin:
        head = create(world, folder)
        for update in range(0, updates + 1, 4):
            state = head.export_state(update)
            advance(world, head, update, update + 4)
        head.rows.close()
        return Origin(*state.values.values())

    return run_ranks(1, run)[0]


def opened(folder: Path, origin: Origin, update: int) -> None:
    def run(world: Any) -> None:
        head = create(world, folder)
        try:
            head.load_state(SavedStore(origin, update))
            head.rows.export()
        finally:
            head.rows.close()

    run_ranks(1, run)


def resume(world: Any, head: PartialFC, progress: Path) -> int:
    """Go back to the last checkpoint that a process has reported; returns its update."""
    lines = progress.read_text().splitlines() if progress.exists() else []
    if not lines:
        return 0
    *origin, update = map(int, lines[-1].split())
    head.load_state(SavedStore(Origin(*origin), update))
    return update


def main(folder: Path, progress: Path, updates: int) -> None:
    """Train and save, from the last checkpoint on."""

    def run(world: Any) -> None:
        head = create(world, folder)
        update = resume(world, head, progress)
        head.export_state(update)
        while update < updates:
            advance(world, head, update, update + INTERVAL)
            update += INTERVAL
            state = head.export_state(update)
            with progress.open("a") as file:
                file.write(f"{state.values[STORE]} {state.values[ATTEMPT]} {update}\n")
            assert state.when_saved is not None
            state.when_saved([update])

    run_ranks(1, run)


if __name__ == "__main__":
    if sys.argv[1] == "reference":
        np.savez(sys.argv[3], **reference(int(sys.argv[2])))
    else:
        main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
