"""The collectives of two ranks, as threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from partial_fc.rows.device import DeviceRows
from runtime.gpu_check import FAIL, PASS
from runtime.mxnet import mx
from tests.support.thread_world import ThreadWorld, run_ranks
from training.device_check import collectives, ranks


def lines_of(world: ThreadWorld) -> list[str]:
    return list(collectives.lines(world, mx.cpu(1 + world.rank)))


def test_right_collectives_pass() -> None:
    first, second = run_ranks(2, lines_of)
    assert first == second
    assert [line[:8].strip() for line in first] == [PASS] * 7 + ["not run"]


def test_a_rank_that_gets_something_else_fails_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ThreadWorld, array: Any, name: str) -> Any:
        values = self._exchange(array.asnumpy(), name)
        return mx.nd.array(np.concatenate(values[:: 1 - 2 * self.rank]), dtype=array.dtype)

    monkeypatch.setattr(ThreadWorld, "allgather", broken)
    first, second = run_ranks(2, lines_of)
    assert first == second
    assert first[2] == f"{FAIL}     two ranks allgather float32: the rows: wrong on 1 of 2 ranks"


@pytest.mark.parametrize("forgets", [(2,), (1, 2)])
def test_all_ranks_report_the_worst_of_them(
    monkeypatch: pytest.MonkeyPatch, forgets: tuple[int, ...]
) -> None:
    """Here one rank or both forget the update of their class centers."""
    update = DeviceRows.update

    def forgetful(self: Any, *arguments: Any) -> None:
        if self._arrays["centers"][0].context.device_id not in forgets:
            update(self, *arguments)

    monkeypatch.setattr(DeviceRows, "update", forgetful)
    first, second = run_ranks(2, lines_of)
    assert first == second
    assert first[6].startswith(f"{FAIL}     two ranks update cosface float32: differs")
    assert "centers 1.0e+00; allowed: " in first[6]


def test_a_single_device_has_no_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert ranks.launch(["gpu(0)"]) == 0
    assert capsys.readouterr().out == "not run  two ranks: there is no device beside gpu(0)\n"
