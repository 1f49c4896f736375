from __future__ import annotations

import os
import pickle
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parallel.parameter_server import assignment
from parallel.parameter_server.assignment import Assignment, Share
from parallel.parameter_server.buckets import Bucket, plan, table_key
from parallel.parameter_server.messages import TAIL, Settings, Tail
from parallel.parameter_server.store import Store
from parallel.parameter_server.trace import Trace
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx

LONE = Assignment(
    "worker", "127.0.0.1", 9000, "127.0.0.2", "lo", num_workers=3, num_servers=2, worker=1
)
FULL = replace(
    LONE,
    local_worker=1,
    groups=((2, 0), (1,)),
    shares=(Share(0.0, 0.1), Share(0.1, 1 / 3), Share(1 / 3, 1.0)),
    tolerates=True,
    server_speeds=(1.0, 0.25),
    bucket_elements=5000,
    trace="/somewhere",
)


def test_variables_are_read_as_they_were_written() -> None:
    for written in (LONE, FULL):
        assert assignment.find(written.variables()) == written
    # A program outside of a job has none.
    assert assignment.find({"GROUPING_WORKER": "1"}) is None
    # Each job has a key of its own, which is not printed.
    other = Assignment("worker", "127.0.0.1", 9000, "127.0.0.2", "lo", num_workers=3, num_servers=2)
    assert len(LONE.key) == len(other.key) == 64 and LONE.key != other.key
    assert LONE.key not in repr(LONE) and LONE.variables()["GROUPING_KEY"] == LONE.key
    # An incomplete one is an error.
    for name in ("DMLC_NUM_WORKER", "GROUPING_KEY"):
        variables = {one: text for one, text in FULL.variables().items() if one != name}
        with pytest.raises(ConfigError, match=f"{name}.*start it with python -m parallel.launch"):
            assignment.find(variables)
    with pytest.raises(ConfigError, match="Expecting value.*start it with"):
        assignment.find({**FULL.variables(), "GROUPING_SHARES": "[[0, 1], half]"})


SIZES = [500, 20, 25_000, 50, 100_000, 500, 5_000, 10]
DECAYS = [1.0, 0.0] * 4


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


@pytest.mark.parametrize(
    ("speeds", "order"),
    [((1.0, 5.0, 2.0), [1, 2, 0]), ((1.0, 0.25), [0, 1]), ((1.0, 1.0), [0, 1]), ((), [0, 1, 2])],
)
def test_servers_keep_elements_by_their_speeds_the_fastest_the_first_layers(speeds, order) -> None:
    # A server may have no elements.
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
    # A tail is whole numbers and a rate.
    for index, invalid in product(range(TAIL), (float("nan"), float("inf"), -1.0, 0.5)):
        numbers = Tail(7, 0.25, 3).encode()
        numbers[index] = invalid
        if (index, invalid) == (2, 0.5):
            assert Tail.decode(numbers).lr == 0.5
        else:
            with pytest.raises(ValueError, match="its tail"):
                Tail.decode(numbers)


def test_lines_are_in_the_file_at_once(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.chdir(tmp_path)
    Trace("", "worker-0").write("push")
    assert list(tmp_path.iterdir()) == []
    trace = Trace(str(tmp_path / "new" / "folder"), "worker-0")
    trace.write("pusher", 1, 4, 7)
    trace.write("push")
    file = tmp_path / "new" / "folder" / "worker-0"
    assert file.read_text() == "pusher 1 4 7\npush\n"
    with pytest.raises(ConfigError, match="--trace .*worker-0 cannot be written .*give another"):
        Trace(str(file), "worker-0")
    # A full disk ends the trace and not the job.
    full = os.open("/dev/full", os.O_WRONLY)
    monkeypatch.setattr("parallel.parameter_server.trace.open_kept", lambda *_: full)
    trace = Trace(str(tmp_path), "worker-0")
    for _ in range(3):
        trace.write("push")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("worker-0 cannot be written (No space left on device); it ends here")


def test_a_worker_begins_with_the_weights_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of different types may round a little differently."""
    settings = Settings(0.9, {}, 1, 2)
    sent: list[Any] = []
    for weight, is_equal in ((1.0, True), (1.0005, True), (1.01, False)):

        def pull(key: int, out: Any, weight=weight) -> None:
            out[:-TAIL] = weight

        server = SimpleNamespace(
            rank=0, init=lambda *_: None, pull=pull, _barrier=lambda: None,
            _send_command_to_servers=lambda *command: sent.append(command),
        )  # fmt: skip
        monkeypatch.setattr(mx.kv, "create", lambda kind, server=server: server)
        store = Store("dist_sync", plan([2], [1.0], 1), table=1, pushers=2)
        store.received[0][:] = 1
        differ = pytest.raises(DataError, match="begins with other weights than the other hosts: ")
        with nullcontext() if is_equal else differ:
            store.start(settings)
    assert sent == [(0, settings.encode())] * 2
