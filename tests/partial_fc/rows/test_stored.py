from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.stored_head import ADAM, LONE, MOMENTUM, advance, are_equal, batch, create
from tests.support.thread_world import run_ranks


@pytest.mark.parametrize(("rule", "ranks", "ahead"), [
    (MOMENTUM, 1, True), (ADAM, 2, True), (ADAM, 1, False), (MOMENTUM, 2, False),
])
def test_the_numbers_are_those_of_rows_in_memory(tmp_path, rule, ranks, ahead) -> None:
    def run(world: Any, store: Any, ahead: bool) -> Any:
        head = create(world, store, rule)
        losses, gradients = zip(*advance(world, head, 0, 12, ahead=ahead))
        arrays = {**head.rows.export(), "losses": losses, "gradients": np.array(gradients)}
        head.rows.close()
        return arrays

    in_store = run_ranks(ranks, lambda world: run(world, tmp_path, ahead))
    in_memory = run_ranks(ranks, lambda world: run(world, None, ahead=False))
    assert all(map(are_equal, in_store, in_memory))


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
