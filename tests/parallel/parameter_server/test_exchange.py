"""What a worker sends and gets, while others push between its buckets; servers in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parallel.parameter_server.messages import TAIL
from runtime.errors import DataError
from tests.soak.replay import replay
from tests.support.near_servers import NearServers, applied, gradients, in_random_turns
from tests.support.thread_world import ThreadWorld, run_ranks


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
    # The version of all weights is that of the bucket with the fewest.
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


def test_a_worker_killed_between_two_buckets_leaves_usable_servers(tmp_path, monkeypatch) -> None:
    """Killed while it pushes, under --tolerate-workers; the first bucket is ahead for good."""
    servers = NearServers(monkeypatch, workers=2, servers=2, trace=str(tmp_path))
    killed, other = servers.worker(0), servers.worker(1)

    def kill(what: str, bucket: int) -> None:
        if (what, bucket) == ("push", 1):
            raise KeyboardInterrupt

    servers.before = kill
    with pytest.raises(KeyboardInterrupt):
        killed.step(gradients(), lr=1.0)
    servers.before = lambda what, bucket: None
    for _ in range(3):
        other.step(gradients(), lr=1.0)
    found = replay(tmp_path, is_complete=False)
    assert found.messages == [] and found.mismatches == 0
    assert (found.largest, found.uneven, other.version) == (2, 3, 3)


def test_overlapping_pushes_of_many_buckets(tmp_path: Path, monkeypatch) -> None:
    workers, servers, steps = 3, 3, 6
    near = NearServers(monkeypatch, workers, servers, trace=str(tmp_path), bucket_elements=2)
    members = [near.worker(number) for number in range(workers)]
    versions: list[list[int]] = [[] for _ in range(workers)]

    def work(number: int) -> None:
        worker = members[number]
        for _ in range(steps):
            worker.step(gradients(), lr=0.001)
            versions[number].append(worker.version)

    in_random_turns(near, workers, seed=servers, work=work)
    found = replay(tmp_path)
    assert found.messages == [] and found.mismatches == 0
    assert found.buckets == 6 and found.pushes == workers * steps
    assert found.updates == found.buckets * workers * steps
    # They did overlap, as buckets with different versions show.
    assert found.largest > workers and found.uneven > steps
    assert all(own == sorted(own) for own in versions)


def test_a_worker_checks_what_it_receives(monkeypatch) -> None:
    servers = NearServers(monkeypatch, workers=1, servers=1)
    worker = servers.worker(0)
    worker.step(gradients(), lr=1.0)
    bucket = [*servers.arrays.values()][0]
    bucket[bucket.size - TAIL] = np.nan
    with pytest.raises(DataError, match="a parameter server sent a bucket that is none"):
        worker._pull()


def test_the_rate_is_that_of_twenty_steps_and_a_pause_ends_with_the_next(monkeypatch) -> None:
    servers = NearServers(monkeypatch, workers=2, servers=1)
    now = [0.0]
    saver, other = servers.worker(0, clock=lambda: now[0]), servers.worker(1)
    for seconds in [100.0] + [0.5] * 20:
        now[0] += seconds
        saver.step(gradients(), lr=0.001)
    # An image a step.
    assert saver.numbers()["images_per_second/worker_0"] == pytest.approx(2.0)
    for pause, pauses in ((saver.pause, 1), (lambda: saver.step(gradients(), lr=0.001), 0)):
        pause()
        other.step(gradients(), lr=0.001)
        assert other.pauses == pauses
    # In BSP all know of a pause, which lasts until the next step is done.
    other.expect_pause()
    other.expect_pause()
    during = [other.pauses]
    servers.before = lambda what, bucket: during.append(other.pauses)
    other.step(gradients(), lr=0.1)
    assert set(during) == {2} and other.pauses == 0
