"""Workers that wait for others with parameter servers: what their watchdogs know of these."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.near_servers import NearServers, gradients
from tests.support.servers import ServerJob

STALL = 4
# Eight steps of each of two workers, and what would have ended one of them.
SMALL = ["--dataset", "synthetic", "--image-size", 16, "--num-images", 128, "--batch-size", 16]
JOBS = {
    # Worker 0 waits at the end for three times as long as it may, in which worker 1 trains on.
    "dist_async": ([], {"1": {"step": 3 * STALL / 8}, "patience": 1}),
    # Worker 1 waits within an update while worker 0 validates.
    "dist_sync": ([], {"0": {"validate": 2 * STALL}}),
    "dist_ssync": (["--staleness", 1], {"0": {"validate": 2 * STALL}}),
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> Iterator[dict[str, tuple[ServerJob, Path]]]:
    """All of them at once: most of the time they sleep."""
    with ExitStack() as stack:
        found = {}
        for scheme, (options, slowness) in JOBS.items():
            folder = tmp_path_factory.mktemp(scheme)
            program = ["-m", "tests.support.slow_worker", json.dumps(slowness), *SMALL, *options]
            program += ["--kv-store", scheme, "--models-root", folder / "models", "--threads", 1]
            program += ["--epochs", 2, "--stall-timeout", STALL]
            job = stack.enter_context(ServerJob(folder / "out", *program, workers=2))
            found[scheme] = job, folder / "models"
        yield found


@pytest.mark.thorough
@pytest.mark.launcher
@pytest.mark.parametrize("scheme", JOBS)
def test_who_waits_for_others_is_not_ended(scheme: str, jobs) -> None:
    job, models = jobs[scheme]
    assert job.wait() == [0, 0], job.said()
    assert "update 8/8" in job.said_by(0)
    assert list(models.glob("checkpoints/update-00000008/manifest.json"))


def test_a_pause_that_all_know_of_lasts_until_the_next_step_is_done(monkeypatch) -> None:
    servers = NearServers(monkeypatch, workers=1, servers=1)
    worker = servers.worker(0)
    worker.expect_pause()
    worker.expect_pause()
    assert worker.pauses == 2
    during = []
    servers.before = lambda what, bucket: during.append(worker.pauses)
    worker.step(gradients(), lr=0.1)
    assert set(during) == {2} and worker.pauses == 0
