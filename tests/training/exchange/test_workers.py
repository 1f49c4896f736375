"""Workers on Horovod and over parameter servers: what each tells the program."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest

from data.batches.position import EpochPart
from parallel.parameter_server.assignment import SCHEMES, WORKER, Assignment, Share
from parallel.world import PLAIN
from runtime.errors import ConfigError
from runtime.mxnet import mx
from runtime.stopwatch import BACKBONE, COMMUNICATION, HEAD, WAITING, Stopwatch
from tests.support.parameters import make_parameters
from tests.support.thread_world import run_ranks
from training.config.images import resolve
from training.exchange import workers
from training.exchange.ranks import agreed_stop, own_speed
from training.exchange.workers import ServerWorkers, WorkerGroups
from training.log.run_log import Throughput
from training.log.watchdog import Others
from training.update.gradients import FiniteGuard
from training.update.optimizer import ServerOptimizer

COUNT = 4000
PLACE = Assignment(
    WORKER, "127.0.0.1", 9000, "127.0.0.1", "lo", num_workers=4, num_servers=1, worker=3,
    local_worker=1,
)  # fmt: skip
UNEQUAL = replace(PLACE, groups=((0,), (1, 2, 3)))
PAIRS = replace(PLACE, groups=((0, 1), (2, 3)))


def exchange(scheme, assignment, world, **options: Any) -> Mock:
    made = Mock(has_started=False, version=0)
    made.table = Mock(stop=0, pauses=5, **{"progress.return_value": 7})
    made.table.numbers = lambda name: {f"images_per_second/{name}_0": 2.0}
    return made


def horovod(groups=(), regroups: bool = False) -> Mock:
    return Mock(groups=groups, regroups=regroups, rank=1, size=2, local_rank=0)


@pytest.fixture(autouse=True)
def no_servers(monkeypatch) -> None:
    monkeypatch.setattr(workers, "Exchange", exchange)
    monkeypatch.setattr(workers, "HorovodWorld", horovod)
    monkeypatch.setattr(workers, "join_ranks", horovod)


def config_of(**given: Any):
    return resolve({"dataset": "synthetic", "batch_size": 10, **given})


def served(assignment: Assignment = PLACE, kv_store="dist_async", **given: Any) -> ServerWorkers:
    return ServerWorkers(config_of(kv_store=kv_store, **given), assignment, COUNT)


def told(joined: ServerWorkers) -> list[str]:
    return [one[0] for one in joined._exchange.mock_calls]


def test_waiting_for_others_is_not_ones_own_time() -> None:
    # Two fast workers would have the speed of the slow one that they wait for; 1 s waits for data.
    parts = {WAITING: 1.0, BACKBONE: 2.0, HEAD: 0.0, COMMUNICATION: 6.0}
    assert own_speed(Throughput(3000, 10.0, parts), contributors=3) == pytest.approx(1000 / 4)
    assert own_speed(None, contributors=2) == 0


@pytest.mark.parametrize("asked", [{1: (3, 143)}, {0: (3, 130), 2: (4, 143)}])
def test_all_ranks_end_after_the_same_update(asked) -> None:
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


def test_the_option_decides_who_trains_together(monkeypatch) -> None:
    check = Mock()
    monkeypatch.setattr(workers, "check_data", check)
    files = [Path("train.rec")]
    joined = workers.join(config_of(), COUNT, files)
    assert isinstance(joined, workers.HorovodWorkers)
    check.assert_called_with(files, joined.world)
    assert (joined.number, joined.size, joined.contributors, joined.saves) == (1, 2, 2, True)
    assert joined.epoch_part() == EpochPart.of_rank(COUNT, 10, 1, 2)
    assert joined.updates_per_epoch(200) == 200 and joined.numbers() == {} and joined.leave(3) == 3
    assert joined.start(float, SimpleNamespace(schedule_shift=40), 200)(2) == 42.0
    for name, value in PLACE.variables().items():
        monkeypatch.setenv(name, value)
    joined = workers.join(config_of(kv_store="dist_async"), COUNT, files)
    assert isinstance(joined, ServerWorkers) and joined.number == 3
    check.assert_called_with(files, joined.world)
    assert joined.world.size == 1


def test_partners_and_share_of_a_worker() -> None:
    shares = replace(PLACE, shares=(Share(0, 0.1), Share(0.1, 0.2), Share(0.2, 0.3), Share(0.3, 1)))
    for assignment, allocates, expected in (
        (PLACE, 0, (1, False, 100)),
        (replace(PLACE, worker=0), 0, (1, True, 100)),
        (shares, 0, (1, False, 100)),
        (shares, 1, (1, False, 280)),
        (UNEQUAL, 0, (3, False, 100)),
        (replace(UNEQUAL, worker=0), 0, (1, True, 100)),
    ):
        scheme = "dist_gsync" if assignment.groups else "dist_async"
        joined = served(assignment, scheme, data_allocator=allocates)
        updates = joined.epoch_part().updates_per_epoch
        assert (joined.contributors, joined.saves, updates) == expected


def test_what_servers_are_told_and_tell() -> None:
    joined = served()
    assert (joined.number, joined.size, joined.world.local_rank) == (3, 4, 1)
    assert joined.updates_per_epoch(100) == 400
    assert joined.numbers() == {"images_per_second/worker_0": 2.0}
    joined = served(UNEQUAL, "dist_gsync")
    assert (joined.world.groups, joined.world.regroups) == (UNEQUAL.groups, False)
    assert joined.numbers() == {"images_per_second/group_0": 2.0}
    assert joined.everyone is joined.world.all_ranks() and joined.world.size == 2


def test_the_schedule_counts_the_updates_of_the_weights() -> None:
    joined = served(momentum=0.7, wd=0.2)
    joined._optimizer = Mock()
    progress = SimpleNamespace(epochs_before=1.5)
    schedule = joined.start(lambda update: 100.0 * update, progress, 400)
    joined._exchange.version = 6
    assert schedule(999) == 600.0
    joined._exchange.has_started, joined._exchange.version = True, 1000
    schedule = joined.start(lambda update: 100.0 * update, progress, 400)
    # The next period begins at its own update 600, where the weights have had 1000.
    assert schedule(999) == 100.0 * 600
    joined._optimizer.start.assert_called_once_with(momentum=0.7, weight_decay=0.2, version=600)
    assert joined._optimizer.contributors == 1


def test_who_is_told_to_end_tells_the_board() -> None:
    joined, request = served(), SimpleNamespace(status=0)
    stop = joined.stop(request)
    joined._exchange.table.stop = 5
    assert stop() == 5
    request.status = 143
    assert [stop(), stop()] == [5, 5]
    assert joined._exchange.ask_to_stop.mock_calls == [call(0), call(0), call(143)]


def test_who_saves_says_so_and_all_workers_of_bsp() -> None:
    for scheme, worker, expected in (
        ("dist_async", 0, [call.pause()]),
        ("dist_async", 3, []),
        ("dist_sync", 0, [call.pause()]),
        ("dist_sync", 3, [call.pause()]),
    ):
        joined = served(replace(PLACE, worker=worker), scheme)
        joined.pause(7)
        joined.settle(9)
        assert joined._exchange.mock_calls == [*expected, call.finish(waits=worker == 0)]
        assert joined.others() == Others(7, 5)


def test_a_process_ends_with_its_status(monkeypatch) -> None:
    ends: list[int] = []
    monkeypatch.setattr(os, "_exit", ends.append)
    for scheme, status, stopped, leaves in (
        ("dist_async", 0, 0, False),
        ("dist_async", 3, 0, True),
        ("dist_async", 0, 130, True),
        ("dist_gsync", 0, 0, True),
    ):
        joined = served(UNEQUAL, scheme)
        joined._stop_status = stopped
        joined.leave(status)
        assert ends.pop() == (status or stopped)
        assert ("leave" in told(joined)) == leaves
    joined.world.close.assert_called_once_with()


def grouped(worker: int) -> tuple[ServerWorkers, Mock]:
    """A worker of two groups of two, and all four, as it meets them."""
    joined = served(replace(PAIRS, worker=worker), "dist_gsync", rebalance=1)
    everybody = joined.world.all_ranks()
    everybody.allgather.return_value = mx.nd.array([2000.0, 500.0, 1990.0, 500.0])
    everybody.broadcast_object = Mock(side_effect=lambda value, name: value)
    return joined, everybody


@pytest.mark.parametrize("speeds_known", [True, False])
def test_the_next_period_has_groups_by_the_measured_speeds(speeds_known: bool) -> None:
    joined, everybody = grouped(worker=0)
    if not speeds_known:
        joined._num_images = 30
    period, batches = (2, 40), Mock()
    assert joined.rebalance(period, None, batches) == period
    expected = ((0, 2), (1, 3)) if speeds_known else ((0, 1), (2, 3))
    assert everybody.allgather.call_args.args[0].asnumpy().tolist() == [0.0]
    assert everybody.barrier.call_count == 2
    batches.read.assert_called_once_with(joined.epoch_part())
    joined.world.regroup.assert_called_once_with(expected)
    assert told(joined) == ["leave", "clear_table", "regroup"]
    (assignment,) = joined._exchange.regroup.call_args.args
    assert assignment.groups == expected and assignment.worker == 0
    assert (joined.contributors, joined.saves) == (2, True)
    assert bool(assignment.shares) == speeds_known


def test_other_workers_take_the_groups_of_worker_0() -> None:
    joined, everybody = grouped(worker=3)
    optimizer = joined.optimizer({}, SimpleNamespace())
    decided = (4, 80), UNEQUAL.groups, ()
    everybody.broadcast_object = Mock(return_value=decided)
    assert joined.rebalance((4, 90), None, Mock()) == (4, 80)
    assert everybody.broadcast_object.call_args.args[0] is None
    assert joined._groups.assignment == replace(UNEQUAL, worker=3) and not joined.saves
    assert told(joined) == ["leave", "regroup"]
    joined._exchange.has_started = True
    joined.start(float, SimpleNamespace(epochs_before=4.0), 100)
    assert optimizer.contributors == 3
    joined._exchange.table.stop = 143
    assert joined.rebalance((6, 120), None, None) is None and joined._stop_status == 143


def groups(assignment: Assignment = PAIRS, scheme: str = "dist_gsync") -> WorkerGroups:
    return WorkerGroups(SCHEMES[scheme], assignment, 10)


def read(found: WorkerGroups) -> list[int]:
    images: list[int] = []
    for worker in range(4):
        epoch_part = found.epoch_part(COUNT, worker)
        images += range(epoch_part.first, epoch_part.first + epoch_part.updates_per_epoch * 10)
    return sorted(images)


def test_before_and_after_every_image_is_read_once() -> None:
    before = groups()
    assert before.updates(COUNT) == [100, 100] and read(before) == list(range(COUNT))
    after = before.anew([2010.0, 502.0, 1990.0, 500.0], COUNT)
    assert after.assignment.groups == ((0, 2), (1, 3))
    images = read(after)
    # What is left of each share does not fill a batch; an epoch's order is another one each time.
    assert len(set(images)) == len(images) > COUNT - 4 * 10
    assert after.updates(COUNT) == [159, 40]
    again = after.anew([1000.0, 1000.0, 1000.0, 1000.0], COUNT)
    assert again.assignment.groups == ((0, 1, 2, 3),)
    assert again.updates(COUNT) == [100] and read(again) == list(range(COUNT))
    # Who was not measured, or would read nothing, keeps all as they are.
    for speeds in ([2000.0, 2000.0, 0.0, 500.0], [2000.0, 2000.0, 1.0, 1.0]):
        assert groups().anew(speeds, COUNT) == groups()
    # Shares that were given are those of the beginning.
    shares = (Share(0, 0.4), Share(0.4, 0.8), Share(0.8, 0.9), Share(0.9, 1))
    assert groups(replace(PAIRS, shares=shares)).updates(COUNT) == [160, 40]
    epoch_part = groups(PLACE, "dist_sync").epoch_part(COUNT, 2)
    assert (epoch_part.first, epoch_part.stride, epoch_part.offset) == (0, 4 * 10, 2 * 10)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 1e20])
def test_the_servers_never_see_a_gradient_that_is_not_finite(odd: float, size: int) -> None:
    def work(world) -> list[tuple[float, ...]]:
        parameters, pushed = make_parameters({"weight": np.zeros(2, np.float32)}), []
        servers = Mock(step=lambda given, lr: pushed.append((*given[0].asnumpy(), lr)))
        optimizer = ServerOptimizer(parameters, servers, world, Stopwatch(), PLAIN)

        def step(*gradient: float) -> None:
            parameters["weight"].grad()[:] = mx.nd.array(gradient)
            reduced = optimizer.reduce(0)
            optimizer.update(0, lr=0.5)
            FiniteGuard().accept(0, mx.nd.ones(1), reduced)

        step(1.0, 2.0)
        with pytest.raises(ConfigError, match="update 1: a gradient"):
            # Of one member of a group; the others have its sum.
            step(1.0, odd if world.rank == world.size - 1 else 3.0)
        return pushed

    assert run_ranks(size, work) == [[(size * 1.0, size * 2.0, 0.5)]] * size
