"""What a worker pushes to the servers, and what it keeps to itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from parallel.world import PLAIN
from runtime.mxnet import mx
from runtime.stopwatch import BACKBONE, COMMUNICATION, Stopwatch
from tests.support.thread_world import run_ranks
from training.exchange.server_optimizer import ServerOptimizer
from training.update import host_sgd
from training.update.finite_guard import FiniteGuard, NonFiniteError


class Worker:
    """A parameter whose gradient is written by hand; what is pushed to the servers is noted."""

    def __init__(self, world) -> None:
        parameters = mx.gluon.ParameterDict()
        self.parameter = parameters.get("weight", shape=(2,))
        parameters.initialize()
        self.pushed: list[list[float]] = []
        servers = SimpleNamespace(step=self.push)
        self.stopwatch = Stopwatch()
        self.optimizer = ServerOptimizer(parameters, servers, world, self.stopwatch, PLAIN)

    def push(self, gradients, lr: float) -> None:
        self.pushed.append([*gradients[0].asnumpy().tolist(), lr])

    def step(self, *gradient: float) -> None:
        self.parameter.grad()[:] = mx.nd.array(gradient)
        reduced = self.optimizer.reduce(0)
        self.optimizer.update(0, lr=0.5)
        FiniteGuard().accept(0, mx.nd.ones(1), reduced)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 1e20])
def test_the_servers_never_see_a_gradient_that_is_not_finite(odd: float, monkeypatch) -> None:
    looks, look = [], host_sgd.all_finite
    monkeypatch.setattr(host_sgd, "all_finite", lambda given: looks.append(1) or look(given))

    def work(world) -> list:
        worker = Worker(world)
        worker.step(1.0, 2.0)
        with pytest.raises(NonFiniteError, match="update 1: a gradient"):
            # Of one member of a group; the others have its sum.
            worker.step(1.0, odd if world.rank == world.size - 1 else 3.0)
        return worker.pushed

    for size in (1, 2):
        assert run_ranks(size, work) == [[[size * 1.0, size * 2.0, 0.5]]] * size
    assert len(looks) == 2 * (1 + 2), "each gradient is looked at once"


@pytest.mark.parametrize(("size", "part"), [(1, BACKBONE), (2, COMMUNICATION)])
def test_a_worker_that_waits_for_its_group_is_in_communication(size: int, part: str) -> None:
    """As the watchdog understands it, also where the stopwatch does not measure."""

    def work(world) -> list[str]:
        worker = Worker(world)
        stopwatch, parts = worker.stopwatch, []
        gradient = SimpleNamespace(wait_to_read=lambda: parts.append(stopwatch.current))
        stopwatch.sample()
        worker.optimizer._gradients = [gradient]
        worker.optimizer._are_finite = lambda: False
        with stopwatch.part(BACKBONE):
            worker.optimizer.update(0, lr=0.5)
        return parts

    assert run_ranks(size, work) == [[part]] * size
