"""Rows of a store: equal to those in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partial_fc.optimizers import RowOptimizer
from tests.support.stored_head import (
    ADAM,
    LONE,
    MOMENTUM,
    advance,
    are_equal,
    batch,
    create,
)
from tests.support.thread_world import run_ranks


@pytest.mark.parametrize(
    ("rule", "ranks", "ahead"),
    [(MOMENTUM, 1, True), (ADAM, 2, True), (ADAM, 1, False), (MOMENTUM, 2, False)],
)
def test_the_numbers_are_those_of_rows_in_memory(
    tmp_path: Path, rule: RowOptimizer, ranks: int, ahead: bool
) -> None:
    def run(world: Any, store: Any, ahead: bool) -> Any:
        head = create(world, store, rule)
        results = advance(world, head, 0, 12, ahead=ahead)
        arrays = head.rows.export()
        head.rows.close()
        return results, arrays

    stored = run_ranks(ranks, lambda world: run(world, tmp_path, ahead))
    in_memory = run_ranks(ranks, lambda world: run(world, None, ahead=False))
    for (steps, arrays), (expected_steps, expected) in zip(stored, in_memory):
        assert are_equal(arrays, expected)
        for (loss, gradient), (expected_loss, expected_gradient) in zip(steps, expected_steps):
            assert loss == expected_loss and np.array_equal(gradient, expected_gradient)


def test_an_update_that_is_left_out_changes_nothing(tmp_path: Path) -> None:
    """The guard against numbers that are not finite may drop an update after its step."""

    def run(store: Any) -> Any:
        head = create(LONE, store)
        for update in range(6):
            head.prepare(batch(LONE, update + 1)[1], update + 1)
            step = head.step(*batch(LONE, update), update, 0.1, hold=True)
            if update != 2:
                step.update_centers()
        return head.rows.export()

    assert are_equal(run(tmp_path), run(None))
