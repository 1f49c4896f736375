from __future__ import annotations

from types import SimpleNamespace

import pytest

from runtime.stopwatch import BACKBONE, COMMUNICATION, HEAD, WAITING
from tests.support.thread_world import run_ranks
from training.exchange.ranks import agreed_stop, own_speed
from training.log.throughput import Throughput


def test_waiting_for_others_is_not_ones_own_time() -> None:
    # Two fast workers would have the speed of the slow one that they wait for; 1 s waits for data.
    parts = {WAITING: 1.0, BACKBONE: 2.0, HEAD: 0.0, COMMUNICATION: 6.0}
    assert own_speed(Throughput(3000, 10.0, parts), contributors=3) == pytest.approx(1000 / 4)
    assert own_speed(None, contributors=2) == 0


@pytest.mark.parametrize("asked", [{1: (3, 143)}, {0: (3, 130), 2: (4, 143)}])
def test_all_ranks_end_after_the_same_update(asked):
    def rank_main(world):
        request = SimpleNamespace(status=0)
        stop = agreed_stop(request, world)
        for update in range(20):
            when, status = asked.get(world.rank, (None, 0))
            if update == when:
                request.status = status
            if ended := stop():
                return update, ended
        return None

    first = min(when for when, _ in asked.values())
    (end,) = set(run_ranks(3, rank_main))
    assert end == (first + 1, asked[min(asked)][1])
