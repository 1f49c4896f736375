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


def worker(world, pushed):
    """An optimizer of a parameter whose gradient is given; what is pushed is noted."""
    parameters = mx.gluon.ParameterDict()
    parameter = parameters.get("weight", shape=(2,))
    parameters.initialize()
    servers = SimpleNamespace(step=lambda given, lr: pushed.append((*given[0].asnumpy(), lr)))
    optimizer = ServerOptimizer(parameters, servers, world, Stopwatch(), PLAIN)

    def step(*gradient: float) -> None:
        parameter.grad()[:] = mx.nd.array(gradient)
        reduced = optimizer.reduce(0)
        optimizer.update(0, lr=0.5)
        FiniteGuard().accept(0, mx.nd.ones(1), reduced)

    return optimizer, step


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 1e20])
def test_the_servers_never_see_a_gradient_that_is_not_finite(odd: float, monkeypatch) -> None:
    looks, look = [], host_sgd.all_finite
    monkeypatch.setattr(host_sgd, "all_finite", lambda given: looks.append(1) or look(given))

    def work(world) -> list:
        pushed: list[tuple[float, ...]] = []
        _, step = worker(world, pushed)
        step(1.0, 2.0)
        with pytest.raises(NonFiniteError, match="update 1: a gradient"):
            # Of one member of a group; the others have its sum.
            step(1.0, odd if world.rank == world.size - 1 else 3.0)
        return pushed

    for size in (1, 2):
        assert run_ranks(size, work) == [[(size * 1.0, size * 2.0, 0.5)]] * size
    assert len(looks) == 2 * (1 + 2), "each gradient is looked at once"


@pytest.mark.parametrize(("size", "part"), [(1, BACKBONE), (2, COMMUNICATION)])
def test_a_worker_that_waits_for_its_group_is_in_communication(size: int, part: str) -> None:
    """As the watchdog understands it, also where the stopwatch does not measure."""

    def work(world) -> list[str]:
        optimizer, _ = worker(world, [])
        stopwatch, parts = optimizer._stopwatch, []
        stopwatch.sample()
        optimizer._gradients = [
            SimpleNamespace(wait_to_read=lambda: parts.append(stopwatch.current))
        ]
        optimizer._are_finite = lambda: False
        with stopwatch.part(BACKBONE):
            optimizer.update(0, lr=0.5)
        return parts

    assert run_ranks(size, work) == [[part]] * size
