from types import SimpleNamespace

import pytest

from runtime.stopwatch import BACKBONE, COMMUNICATION, HEAD, PARTS, WAITING, Stopwatch


class HandClock:
    now = 50.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_seconds_count_for_the_innermost_part() -> None:
    clock = HandClock()
    stopwatch = Stopwatch(clock)
    clock.wait(100.0)
    with stopwatch.part(HEAD):
        clock.wait(1.0)
        with pytest.raises(StopIteration), stopwatch.part(COMMUNICATION):
            clock.wait(10.0)
            raise StopIteration
        clock.wait(2.0)
    clock.wait(100.0)
    assert stopwatch.lap() == {WAITING: 0.0, BACKBONE: 0.0, HEAD: 3.0, COMMUNICATION: 10.0}
    with stopwatch.part(BACKBONE):
        clock.wait(1.0)
        assert stopwatch.lap()[BACKBONE] == 1.0
        clock.wait(4.0)
    assert stopwatch.lap()[BACKBONE] == 4.0
    assert stopwatch.lap() == dict.fromkeys(PARTS, 0.0)


def test_a_sample_stands_for_its_interval() -> None:
    """Outside of it nothing waits, and what is queued there counts for nothing."""
    clock = HandClock()
    stopwatch = Stopwatch(clock)
    waits: list[float] = []
    stopwatch.sample()
    array = SimpleNamespace(wait_to_read=lambda: waits.append(clock.now))
    assert not stopwatch.measures
    with stopwatch.part(HEAD):
        clock.wait(100.0)
        stopwatch.wait(array)
        stopwatch.defer(lambda: waits.append(clock.now))
    stopwatch.settle()
    assert waits == []
    stopwatch.begin_sample()
    assert stopwatch.measures
    with stopwatch.part(HEAD):
        clock.wait(1.0)
        stopwatch.wait(array)
        stopwatch.defer(lambda: waits.append(clock.now), COMMUNICATION)
    with stopwatch.part(BACKBONE):
        clock.wait(2.0)
    clock.wait(1.0)
    stopwatch.settle()
    assert waits == [151.0, 154.0]
    assert stopwatch.lap(80.0) == {WAITING: 0.0, BACKBONE: 40.0, HEAD: 20.0, COMMUNICATION: 0.0}
    assert not stopwatch.measures
    assert stopwatch.lap(80.0) == dict.fromkeys(PARTS, 0.0)


def test_deferred_waits_run_in_order() -> None:
    clock = HandClock()
    stopwatch = Stopwatch(clock)
    with stopwatch.part(BACKBONE):
        stopwatch.defer(lambda: clock.wait(2.0))
        stopwatch.defer(lambda: clock.wait(3.0), COMMUNICATION)
        stopwatch.defer(lambda: clock.wait(4.0))
    assert clock.now == 50.0
    stopwatch.settle()
    stopwatch.settle()
    seconds = stopwatch.lap()
    assert (seconds[BACKBONE], seconds[COMMUNICATION]) == (6.0, 3.0)
    assert clock.now == 59.0
