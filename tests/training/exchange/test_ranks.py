from __future__ import annotations

import pytest

from training.exchange.ranks import own_speed
from training.log.stopwatch import BACKBONE, COMMUNICATION, HEAD, WAITING
from training.log.throughput import Throughput


def test_waiting_for_others_is_not_ones_own_time() -> None:
    # Two fast workers would have the speed of the slow one that they wait for; 1 s waits for data.
    parts = {WAITING: 1.0, BACKBONE: 2.0, HEAD: 0.0, COMMUNICATION: 6.0}
    assert own_speed(Throughput(3000, 10.0, parts), contributors=3) == pytest.approx(1000 / 4)


def test_nothing_measured_is_no_speed() -> None:
    assert own_speed(None, contributors=2) == 0
