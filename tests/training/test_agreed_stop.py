"""Ranks that are asked at different moments end after the same update."""

from __future__ import annotations

import pytest

from tests.support.thread_world import run_ranks
from training.agreed_stop import AgreedStop


class Request:
    def __init__(self):
        self.status = 0


@pytest.mark.parametrize("asked", [{1: (3, 143)}, {0: (3, 130), 2: (4, 143)}, {0: (0, 143)}])
def test_all_ranks_end_after_the_same_update(asked):
    def rank_main(world):
        request = Request()
        stop = AgreedStop(request, world)
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
