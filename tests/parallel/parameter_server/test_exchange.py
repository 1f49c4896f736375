"""What servers and workers send each other, and a worker's exchange with servers in memory."""

from __future__ import annotations

import ctypes
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest

from parallel.parameter_server import assignment, connections
from parallel.parameter_server.assignment import SCHEMES, WORKER, Assignment, Share
from parallel.parameter_server.buckets import Bucket, plan, table_key
from parallel.parameter_server.exchange import Exchange
from parallel.parameter_server.messages import TAIL, Settings, Tail, Trace
from parallel.parameter_server.server import Updater
from parallel.world import LoneWorld, World
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from tests.support.thread_world import ThreadWorld, run_ranks

LONE = Assignment(
    "worker", "127.0.0.1", 9000, "127.0.0.2", "lo", num_workers=3, num_servers=2, worker=1
)
FULL = replace(
    LONE, local_worker=1, groups=((2, 0), (1,)), tolerates=True, server_speeds=(1.0, 0.25),
    shares=(Share(0.0, 0.1), Share(0.1, 1 / 3), Share(1 / 3, 1.0)),
    bucket_elements=5000, trace="/somewhere",
)  # fmt: skip
SIZES = [500, 20, 25_000, 50, 100_000, 500, 5_000, 10]
DECAYS = [1.0, 0.0] * 4


def test_variables_are_read_as_they_were_written() -> None:
    for written in (LONE, FULL):
        assert assignment.find(written.variables()) == written
    assert assignment.find({"GROUPING_WORKER": "1"}) is None
    # Each job has a key of its own, which is not printed.
    other = Assignment("worker", "127.0.0.1", 9000, "127.0.0.2", "lo", num_workers=3, num_servers=2)
    assert len(LONE.key) == len(other.key) == 64 and LONE.key != other.key
    assert LONE.key not in repr(LONE) and LONE.variables()["GROUPING_KEY"] == LONE.key
    for name in ("DMLC_NUM_WORKER", "GROUPING_KEY"):
        variables = {one: text for one, text in FULL.variables().items() if one != name}
        with pytest.raises(ConfigError, match=f"{name}.*start it with python -m parallel.launch"):
            assignment.find(variables)
    with pytest.raises(ConfigError, match="Expecting value.*start it with"):
        assignment.find({**FULL.variables(), "GROUPING_SHARES": "[[0, 1], half]"})


def elements(buckets: tuple[Bucket, ...]) -> list[tuple[int, int]]:
    return [
        (one.parameter, element)
        for bucket in buckets
        for one in bucket.slices
        for element in range(one.start, one.stop)
    ]


@pytest.mark.parametrize(("servers", "largest"), [(1, 1 << 24), (2, 7001), (3, 1 << 24), (8, 7001)])
def test_every_element_is_in_one_bucket(servers: int, largest: int) -> None:
    buckets = plan(SIZES, DECAYS, servers, largest=largest)
    found = elements(buckets)
    assert len(found) == len(set(found)) == sum(SIZES)
    assert max(bucket.size for bucket in buckets) <= largest
    for bucket in buckets:
        assert {DECAYS[one.parameter] for one in bucket.slices} == {bucket.decay}
    # Keys go to their servers as MXNet sends them.
    keys = [bucket.key for bucket in buckets]
    assert len(set(keys)) == len(keys)
    assert all(bucket.key * 9973 % servers == bucket.server for bucket in buckets)
    table = table_key(buckets, servers)
    assert table not in keys and table * 9973 % servers == buckets[0].server


@pytest.mark.parametrize(("speeds", "order"), [
    ((1.0, 5.0, 2.0), [1, 2, 0]), ((1.0, 0.25), [0, 1]), ((1.0, 1.0), [0, 1]), ((), [0, 1, 2]),
])  # fmt: skip
def test_servers_keep_elements_by_their_speeds_the_fastest_the_first_layers(speeds, order) -> None:
    assert elements(plan([2], [1.0], 4)) == [(0, 0), (0, 1)]
    buckets = plan(SIZES, [1.0] * len(SIZES), len(order), speeds)
    assert list(dict.fromkeys(bucket.server for bucket in buckets)) == order
    assert elements(buckets) == sorted(elements(buckets))
    for decays in ([1.0] * len(SIZES), DECAYS):
        loads = np.zeros(len(order))
        for bucket in plan(SIZES, decays, len(order), speeds):
            loads[bucket.server] += bucket.size
        shares = np.array(speeds or [1.0] * len(order))
        np.testing.assert_allclose(loads, shares / shares.sum() * sum(SIZES), atol=1)


def test_tails_and_settings_travel_exactly_and_nothing_else_does() -> None:
    settings = Settings(0.9, {0: 1e-4, 7: 0.0}, table=3, pushers=4, together=4)
    assert Settings.decode(settings.encode()) == settings
    pickled = pickle.dumps(Settings(0.9, {}, 1, 2), 0).decode()
    for text in ("", "[]", "{}", '{"momentum": "x"}', pickled):
        with pytest.raises((ValueError, KeyError, TypeError)):
            Settings.decode(text)
    for version in (0, 2**20 - 1, 2**20, 2**24 + 1, 2**40 + 12345):
        numbers = Tail(version, lr=0.25, pusher=3).encode()
        assert numbers.dtype == np.float32 and numbers.shape == (TAIL,)
        assert Tail.decode(numbers) == Tail(version, 0.25, 3, 1)
    total: Any = sum(Tail(7, lr=0.5, pusher=worker).encode() for worker in range(3))
    assert (Tail.decode(total).pushes, Tail.decode(total).lr) == (3, 1.5)
    for index, invalid in product(range(TAIL), (float("nan"), float("inf"), -1.0, 0.5)):
        numbers = Tail(7, 0.25, 3).encode()
        numbers[index] = invalid
        if (index, invalid) == (2, 0.5):
            assert Tail.decode(numbers).lr == 0.5
        else:
            with pytest.raises(ValueError, match="no tail"):
                Tail.decode(numbers)


def test_lines_are_in_the_file_at_once(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Trace("", "worker-0").write("push")
    assert list(tmp_path.iterdir()) == []
    trace, file = Trace("new/folder", "worker-0"), Path("new/folder/worker-0")
    trace.write("pusher", 1, 4, 7)
    assert file.read_text() == "pusher 1 4 7\n"
    with pytest.raises(DataError, match="--trace .*worker-0 cannot be written: .*give another"):
        Trace(str(file), "worker-0")
    # A full disk ends the trace and not the job.
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr("parallel.parameter_server.messages.open_kept", lambda *_: full)
    Trace(str(tmp_path), "worker-0").write("push")


class NearServers:
    """MXNet's key-value store of all workers, with the updater of the real servers.

    A test decides in which order the pushes and pulls of several workers reach the servers. Not
    for threads that run at once.

    Attributes:
        arrays: by key.
        before: is called with "push" or "pull" and the number of a bucket, before that is done.
    """

    rank = 0

    def __init__(self, monkeypatch, workers: int, servers: int, **assignment) -> None:
        self.arrays: dict[int, Any] = {}
        self.before: Callable[[str, int], None] = lambda what, bucket: None
        given = {"bucket_elements": 4, **assignment}
        place = (WORKER, "127.0.0.1", 1, "127.0.0.1", "lo")
        self.assignment = Assignment(*place, workers, servers, **given)
        self._updaters: list[Updater] = []
        monkeypatch.setattr(mx.kv, "create", lambda kind: self)

    def worker(
        self, number: int, scheme: str = "dist_async", group: Optional[World] = None, **options
    ) -> Any:
        """Start a worker whose ``weights`` are the servers': 0, 1, 2 ... in two parameters."""
        own = replace(self.assignment, worker=number)
        worker: Any = Exchange(
            SCHEMES[scheme], own, group or LoneWorld(), staleness=None, batch_size=1, **options
        )
        worker.weights = [mx.nd.arange(5), mx.nd.arange(5, 12)]
        worker.start(worker.weights, [1.0, 1.0], momentum=0.0, weight_decay=0.0, version=0)
        return worker

    def init(self, keys, arrays) -> None:
        for key, array in self._each("init", keys, arrays):
            self.arrays.setdefault(key, array.copy())

    def push(self, keys, arrays) -> None:
        for key, array in self._each("push", keys, arrays):
            self._updaters[key * 9973 % len(self._updaters)](key, array.copy(), self.arrays[key])

    def pull(self, keys, out) -> None:
        for key, array in self._each("pull", keys, out):
            array[:] = self.arrays[key]

    def _each(self, what: str, keys, arrays) -> Iterator[tuple[int, Any]]:
        # The shared table has a single key.
        buckets = isinstance(keys, list)
        for number, pair in enumerate(zip(keys, arrays) if buckets else [(keys, arrays)]):
            if buckets:
                self.before(what, number)
            yield pair

    def _send_command_to_servers(self, head: int, body: str) -> None:
        if not self._updaters:
            names = (f"server-{number}" for number in range(self.assignment.num_servers))
            traces = [Trace(self.assignment.trace, name) for name in names]
            self._updaters = [Updater(Settings.decode(body), trace) for trace in traces]

    def _barrier(self) -> None:
        return


def gradients() -> list:
    """Of the weights of ``NearServers.worker``: 1 everywhere."""
    return [mx.nd.ones(5), mx.nd.ones(7)]


def applied(folder: Path) -> dict[int, list[tuple[int, ...]]]:
    """By bucket, what the servers wrote: pusher, sent version, version and staleness."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for path in folder.glob("server-*"):
        for line in path.read_text().splitlines():
            key, *numbers = map(int, line.split())
            found.setdefault(key, []).append(tuple(numbers))
    return found


def test_a_worker_begins_with_the_weights_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of different types may round a little differently."""
    for factor, is_equal in ((1.0, True), (1.0005, True), (1.01, False)):
        servers = NearServers(monkeypatch, workers=2, servers=1)
        servers.worker(0)
        for array in servers.arrays.values():
            array[:-TAIL] *= factor
        differ = pytest.raises(DataError, match="begins with other weights than the other hosts: ")
        with nullcontext() if is_equal else differ:
            servers.worker(1)


def test_a_function_that_a_library_does_not_import_is_not_replaced() -> None:
    library = ctypes.CDLL("libm.so.6")
    with pytest.raises(OSError, match=r"libm\.so\.6 does not import accept4\(\)"):
        connections.replace_imports(library, {"accept4": ctypes.CFUNCTYPE(None)(print)})


def test_a_push_returns_each_buckets_own_version(tmp_path: Path, monkeypatch) -> None:
    """A worker makes two steps while another one is between its pushes of two buckets."""
    servers = NearServers(monkeypatch, workers=2, servers=1, trace=str(tmp_path))
    slow, fast = servers.worker(0), servers.worker(1)
    seen = []

    def meanwhile(what: str, bucket: int) -> None:
        if (what, bucket) == ("push", 1):
            servers.before = lambda what, bucket: None
            for _ in range(2):
                fast.step(gradients(), lr=1.0)
                seen.append(fast.version)

    servers.before = meanwhile
    slow.step(gradients(), lr=1.0)
    fast.step(gradients(), lr=1.0)
    first, second, *_ = applied(tmp_path).values()
    # Pusher, version that it had pulled, version of the bucket, staleness.
    assert first == [(0, 0, 0, 1), (1, 0, 1, 2), (1, 2, 2, 1), (1, 3, 3, 1)]
    assert second == [(1, 0, 0, 1), (1, 1, 1, 1), (0, 0, 2, 3), (1, 2, 3, 2)]
    # Learning rate 1, gradient 1, no momentum: each update takes 1 / staleness.
    assert fast.weights[0].asnumpy()[0] == pytest.approx(0 - (1 + 1 / 2 + 1 + 1))
    assert fast.weights[0].asnumpy()[4] == pytest.approx(4 - (1 + 1 + 1 / 3 + 1 / 2))
    assert [*seen, fast.version] == [1, 2, 4]


def test_the_workers_of_a_group_have_the_same_weights_and_table(monkeypatch) -> None:
    """Only the leader talks to the servers; the others get all buckets, the last one too."""
    servers = NearServers(monkeypatch, workers=2, servers=1, groups=((0, 1),))

    def work(group: ThreadWorld) -> tuple[list, int, list]:
        worker = servers.worker(group.rank, "dist_gsync", group)
        for _ in range(2):
            worker.step(gradients(), lr=1.0)
        numbers = [weight.asnumpy().tolist() for weight in worker.weights]
        return numbers, worker.version, worker.table.rows.tolist()

    leader, other = run_ranks(2, work)
    assert leader == other
    # Two updates of learning rate 1 and gradient 1, alone.
    weights = [number - 2.0 for number in range(12)]
    assert leader[:2] == ([weights[:5], weights[5:]], 2)
    assert any(map(any, leader[2]))


def test_the_rate_is_that_of_twenty_steps_and_a_pause_ends_with_the_next(monkeypatch) -> None:
    servers = NearServers(monkeypatch, workers=2, servers=1)
    now = [0.0]
    saver, other = servers.worker(0, clock=lambda: now[0]), servers.worker(1)
    for seconds in [100.0, 1.5] + [0.5] * 19:
        now[0] += seconds
        saver.step(gradients(), lr=0.001)
    assert saver.table.numbers("worker")["images_per_second/worker_0"] == pytest.approx(20 / 11)
    again = saver.pause, saver.pause, lambda: saver.step(gradients(), lr=0.001)
    for pause, pauses in zip(again, (1, 2, 0)):
        pause()
        other.step(gradients(), lr=0.001)
        assert other.table.pauses == pauses
