"""Workers on Horovod and over parameter servers: what each tells the program."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data.batches.epoch_part import EpochPart
from parallel.parameter_server.assignment import WORKER, Assignment, Share
from parallel.world import LoneWorld
from training.config.images import resolve
from training.exchange import server_workers, workers
from training.exchange.server_workers import ServerWorkers
from training.log.watchdog import Others

COUNT = 4000
PLACE = Assignment(
    WORKER, "127.0.0.1", 9000, "127.0.0.1", "lo", num_workers=4, num_servers=1, worker=3,
    local_worker=1,
)  # fmt: skip
UNEQUAL = replace(PLACE, groups=((0,), (1, 2, 3)))


class Exchange:
    """In place of the servers: notes what it is told."""

    def __init__(self, scheme, assignment, world, **options: Any) -> None:
        self.scheme, self.assignment, self.world, self.options = scheme, assignment, world, options
        self.has_started, self.version, self.stop, self.pauses = False, 0, 0, 5
        self.calls: list[Any] = []

    def __getattr__(self, name: str):
        def call(*arguments: Any, **options: Any):
            self.calls.append((name, *arguments, *options.items()))
            return {"staleness": 2.0} if name == "numbers" else 7

        return call


class Horovod:
    """In place of a world of Horovod: two ranks, or all of four."""

    def __init__(self, groups=(), regroups: bool = False) -> None:
        self.groups, self.regroups = groups, regroups
        self.rank, self.size, self.local_rank = 1, 2, 0
        self.has_closed = False

    def allreduce(self, array, name: str, op: str = "sum"):
        return array

    def close(self) -> None:
        self.has_closed = True


@pytest.fixture(autouse=True)
def no_servers(monkeypatch) -> None:
    monkeypatch.setattr(server_workers, "Exchange", Exchange)
    monkeypatch.setattr(server_workers, "HorovodWorld", Horovod)
    monkeypatch.setattr(workers, "join_ranks", Horovod)


def config_of(**given: Any):
    return resolve({"dataset": "synthetic", "batch_size": 10, **given})


def served(assignment: Assignment = PLACE, **given: Any) -> ServerWorkers:
    return ServerWorkers(config_of(**{"kv_store": "dist_async", **given}), assignment, COUNT)


def test_the_option_decides_who_trains_together(monkeypatch) -> None:
    compared = []
    monkeypatch.setattr(workers.same_data, "check", lambda *given: compared.append(given))
    files = [Path("train.rec")]
    joined = workers.join(config_of(), COUNT, files)
    assert isinstance(joined, workers.HorovodWorkers)
    assert compared.pop() == (files, joined.world)
    for name, value in PLACE.variables().items():
        monkeypatch.setenv(name, value)
    joined = workers.join(config_of(kv_store="dist_async"), COUNT, files)
    assert isinstance(joined, ServerWorkers) and joined.number == 3
    # It meets nobody.
    assert compared.pop() == (files, joined.world) and joined.world.size == 1


def test_ranks_of_horovod() -> None:
    joined = workers.HorovodWorkers(config_of(), COUNT)
    assert (joined.number, joined.size, joined.contributors, joined.saves) == (1, 2, 2, True)
    assert joined.epoch_part() == EpochPart.of_rank(COUNT, 10, 1, 2)
    assert joined.updates_per_epoch(200) == 200
    assert joined.numbers() == {} and joined.leave(3) == 3
    shifted = SimpleNamespace(shifted=lambda schedule: ("shifted", schedule))
    assert joined.schedule("schedule", shifted) == ("shifted", "schedule")


def test_a_worker_alone() -> None:
    joined = served(staleness=None)
    assert isinstance(joined.world, LoneWorld) and joined.world.local_rank == 1
    assert (joined.number, joined.size, joined.contributors, joined.saves) == (3, 4, 1, False)
    assert served(replace(PLACE, worker=0)).saves
    assert joined.epoch_part().updates_per_epoch == 100
    # Of four workers, each of which updates the weights by itself.
    assert joined.updates_per_epoch(100) == 400 and joined.numbers() == {"staleness": 2.0}
    assert joined._exchange.options == {"staleness": None, "images_per_step": 10}
    # As in MXNet-G, whose option is 0 unless it is given.
    for staleness in (4, None):
        worker = served(kv_store="dist_ssync", staleness=staleness)
        assert worker._exchange.options["staleness"] == (staleness or 0)
    # Shares are heeded when asked for.
    shares = (Share(0, 0.1), Share(0.1, 0.2), Share(0.2, 0.3), Share(0.3, 1))
    for asked, updates in ((0, 100), (1, 280)):
        worker = served(replace(PLACE, shares=shares), data_allocator=asked)
        assert worker.epoch_part().updates_per_epoch == updates


def test_a_worker_of_a_group() -> None:
    joined = served(UNEQUAL, kv_store="dist_gsync")
    assert (joined.world.groups, joined.world.regroups) == (UNEQUAL.groups, False)
    assert (joined.contributors, joined.saves) == (3, False)
    assert joined._exchange.options["images_per_step"] == 10 * 2
    assert served(UNEQUAL, kv_store="dist_gsync", rebalance=2).world.regroups
    # All groups have the same data.
    everybody = SimpleNamespace(size=4)
    joined.world.all_ranks = lambda: everybody
    assert joined.everyone is everybody and joined.world.size == 2


def test_the_schedule_counts_the_updates_of_the_weights() -> None:
    joined = served(momentum=0.7, wd=0.2)
    started = []
    joined._optimizer = SimpleNamespace(start=lambda **options: started.append(options))
    progress = SimpleNamespace(epochs_before=1.5)
    joined.start(progress, 400)
    # One and a half epochs of 400 updates by all.
    assert started == [{"momentum": 0.7, "weight_decay": 0.2, "version": 600}]
    schedule = joined.schedule(lambda update: 100.0 * update, progress)
    joined._exchange.version = 6
    assert schedule(999) == 600.0
    joined._exchange.has_started, joined._exchange.version = True, 1000
    joined.start(progress, 400)
    # The next period begins at its own update 600, where the weights have had 1000.
    assert schedule(999) == 100.0 * 600 and len(started) == 1


def test_who_is_told_to_end_tells_the_board() -> None:
    joined = served()
    request = SimpleNamespace(status=0)
    told = joined.stop(request)
    joined._exchange.stop = 5
    assert told() == 5
    request.status = 143
    told()
    told()
    asked = [call[1] for call in joined._exchange.calls if call[0] == "ask_to_stop"]
    assert asked == [0, 0, 143]


def test_who_saves_says_so_and_the_workers_of_bsp_know() -> None:
    for scheme, worker, expected in (
        ("dist_async", 0, [("pause",)]),
        ("dist_async", 3, []),
        ("dist_sync", 0, []),
        ("dist_sync", 3, [("expect_pause",)]),
    ):
        joined = served(replace(PLACE, worker=worker), kv_store=scheme)
        joined.pause(7)
        # Who saves waits for the others at the end.
        joined.settle(9)
        assert joined._exchange.calls == [*expected, ("finish", ("waits", worker == 0))]
        assert joined.others() == Others(7, 5)


def test_a_process_ends_with_its_status(monkeypatch) -> None:
    ends = []
    monkeypatch.setattr(os, "_exit", ends.append)
    for scheme, status, told, leaves in (
        ("dist_async", 0, 0, False),
        ("dist_async", 3, 0, True),
        ("dist_async", 0, 130, True),
        ("dist_gsync", 0, 0, True),
    ):
        joined = served(UNEQUAL, kv_store=scheme)
        joined._stop_status = told
        joined.leave(status)
        assert ends.pop() == (status or told)
        assert (("leave",) in joined._exchange.calls) == leaves
    assert joined.world.has_closed


class Everybody:
    """All four workers, as worker 3 or 0 meets them."""

    def __init__(self, answer=None) -> None:
        self.answer, self.barriers, self.own = answer, 0, None

    def allgather(self, array, name: str):
        self.own = array.asnumpy().tolist()
        return SimpleNamespace(
            asnumpy=lambda: SimpleNamespace(tolist=lambda: [2000.0, 500.0, 1990.0, 500.0])
        )

    def broadcast_object(self, value, name: str):
        self.given = value
        return value or self.answer

    def barrier(self) -> None:
        self.barriers += 1


def grouped(everybody: Everybody, regrouped: list[Any], worker: int = 3) -> ServerWorkers:
    """A worker of two groups of two, which meets these workers."""
    place = replace(PLACE, worker=worker, groups=((0, 1), (2, 3)))
    joined = served(place, kv_store="dist_gsync", rebalance=1)
    joined.world.all_ranks, joined.world.regroup = lambda: everybody, regrouped.append
    return joined


@pytest.mark.parametrize("speeds_known", [True, False])
def test_the_next_period_has_groups_by_the_measured_speeds(speeds_known: bool) -> None:
    everybody, regrouped, read = Everybody(), [], []
    joined = grouped(everybody, regrouped, worker=0)
    if not speeds_known:
        joined._num_images = 30
    period, batches = (2, 40), SimpleNamespace(read=read.append)
    assert joined.rebalance(period, None, batches) == period
    expected = ((0, 2), (1, 3)) if speeds_known else ((0, 1), (2, 3))
    assert everybody.own == [0.0] and everybody.barriers == 2
    assert read == [joined.epoch_part()] and regrouped == [expected]
    assert [call[0] for call in joined._exchange.calls] == ["leave", "clear_table", "regroup"]
    assignment, images = joined._exchange.calls[-1][1:]
    assert assignment.groups == expected and assignment.worker == 0 and images == 20
    assert (joined.contributors, joined.saves) == (2, True)
    assert bool(assignment.shares) == speeds_known


def test_other_workers_take_the_groups_of_worker_0() -> None:
    everybody = Everybody()
    joined = grouped(everybody, [])
    optimizer = joined.optimizer({}, SimpleNamespace())
    assert optimizer.contributors == 2
    larger = replace(UNEQUAL, worker=0)
    everybody.answer = (4, 80), replace(joined._groups, assignment=larger)
    batches = SimpleNamespace(read=lambda part: None)
    assert joined.rebalance((4, 90), None, batches) == (4, 80)
    assert everybody.given is None
    assert joined._groups.assignment == replace(UNEQUAL, worker=3) and not joined.saves
    assert [call[0] for call in joined._exchange.calls] == ["leave", "regroup"]
    # A step divides its loss by the images of all contributors, which are others afterwards.
    joined._exchange.has_started = True
    joined.start(SimpleNamespace(epochs_before=4.0), 100)
    assert optimizer.contributors == 3
    joined._exchange.stop = 143
    assert joined.rebalance((6, 120), None, None) is None
    assert joined._stop_status == 143
