"""Rows of a store: equal to those in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partial_fc.optimizers import RowOptimizer
from partial_fc.store.index import Index
from tests.support.stored_head import (
    ADAM,
    CLASSES,
    MOMENTUM,
    advance,
    are_equal,
    batch,
    create,
)
from tests.support.thread_world import run_ranks


@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "when needed"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("rule", [MOMENTUM, ADAM], ids=["sgd", "adam"])
def test_the_numbers_are_those_of_rows_in_memory(
    tmp_path: Path, rule: RowOptimizer, ranks: int, ahead: bool
) -> None:
    def run(world: Any, store: Any) -> Any:
        head = create(world, store, rule)
        results = advance(world, head, 0, 12, ahead=ahead)
        arrays = head.rows.export()
        head.rows.close()
        return results, arrays

    stored = run_ranks(ranks, lambda world: run(world, tmp_path))
    in_memory = run_ranks(ranks, lambda world: run(world, None))
    for (steps, arrays), (expected_steps, expected) in zip(stored, in_memory):
        assert are_equal(arrays, expected)
        for (loss, gradient), (expected_loss, expected_gradient) in zip(steps, expected_steps):
            assert loss == expected_loss
            assert np.array_equal(gradient, expected_gradient)


def test_an_update_that_is_left_out_changes_nothing(tmp_path: Path) -> None:
    """The guard against numbers that are not finite may drop an update after its step."""

    def run(world: Any, store: Any) -> Any:
        head = create(world, store)
        for update in range(6):
            head.prepare(batch(world, update + 1)[1], update + 1)
            step = head.step(*batch(world, update), update, 0.1, hold=True)
            if update != 2:
                step.update_centers()
        return head.rows.export()

    stored = run_ranks(1, lambda world: run(world, tmp_path))[0]
    assert are_equal(stored, run_ranks(1, lambda world: run(world, None))[0])


def test_a_row_that_no_update_has_sampled_takes_no_room(tmp_path: Path) -> None:
    def run(world: Any) -> None:
        head = create(world, tmp_path, ratio=0.001)
        advance(world, head, 0, 1)
        head.rows.close()

    run_ranks(1, run)
    index = Index(np.fromfile(tmp_path / "index.bin", np.uint32))
    written = np.count_nonzero(index.checks)
    assert 1 <= written <= 33
    assert index.checks.size == CLASSES
    assert 0 < (tmp_path / "records.bin").stat().st_blocks * 512 <= 192 * written + 4096
