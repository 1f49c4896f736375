"""Jobs of a scheduler, servers and workers as processes on 127.0.0.1, also under attack."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel.host_lists import free_port
from parallel.launch.launcher import SERVE
from parallel.parameter_server import assignment
from parallel.parameter_server.assignment import SCHEDULER, SCHEMES, SERVER, WORKER, Assignment
from parallel.parameter_server.exchange import Exchange
from parallel.world import LoneWorld
from runtime.mxnet import mx
from tests.support import attacker
from tests.support.job import Watched
from tests.support.launch import ROOT, clean_environment, finish, ranks
from tests.support.processes import listeners

pytestmark = pytest.mark.launcher

SCRIPT = ["-m", "tests.parallel.parameter_server.test_jobs"]
ALTERED = ["-m", "tests.parallel.parameter_server.altered_worker"]
SMALL = ["--dataset", "synthetic", "--image-size", 16, "--batch-size", 32, "--threads", 1]
# The turn of a worker that does not exist: the others wait until its file is there.
GATE, NOBODY = 3, 9
TURNS = [0, 1, 2, NOBODY, 2, 0, 1]


def main(folder: Path, turns: list[int]) -> None:
    """Pull and push as a worker in a given order, and write what it got.

    All pull in the beginning; the worker whose turn it is pushes a gradient of 1 at the rate of 1,
    and pulls.
    """
    own = assignment.find(os.environ)
    assert own is not None
    exchange = Exchange(SCHEMES["dist_async"], own, LoneWorld(), staleness=None, batch_size=1)
    parameters = [mx.nd.zeros((3, 2)), mx.nd.full((5,), 10)]
    gradients = [mx.nd.ones((3, 2)), mx.nd.ones((5,))]
    exchange.start(parameters, [1.0, 0.0], momentum=0.5, weight_decay=0.125, version=0)
    (folder / f"ready-{own.worker}").touch()
    while len(list(folder.glob("ready-*"))) < own.num_workers:
        time.sleep(0.01)
    for turn, worker in enumerate(turns):
        if worker == own.worker:
            while not all((folder / str(number)).exists() for number in range(turn)):
                time.sleep(0.01)
            exchange.step(gradients, lr=1.0)
            result = {
                "version": exchange.version,
                "weights": [parameter.asnumpy().ravel().tolist() for parameter in parameters],
                "numbers": exchange.table.numbers("worker"),
            }
            (folder / f"{turn}.part").write_text(json.dumps(result))
            (folder / f"{turn}.part").rename(folder / str(turn))
    sys.stdout.flush()
    os._exit(0)


class ServerJob(Watched):
    """A scheduler, parameter servers and workers as processes on 127.0.0.1."""

    def __init__(
        self, folder: Path, *command: object, workers: int, servers: int = 1, **assignment: Any
    ) -> None:
        """Start it: outputs go into the folder, and each worker is Python with the command."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, here = folder, "127.0.0.1"
        self._assignment = replace(
            Assignment(WORKER, here, free_port(here), here, "lo", workers, servers), **assignment
        )
        self.others = [self._start(SERVE, SCHEDULER, 0)]
        self.others += [self._start(SERVE, SERVER, number) for number in range(servers)]
        program = [sys.executable, *map(str, command)]
        self.workers = [self._start(program, WORKER, number) for number in range(workers)]

    def _start(self, command: Sequence[str], role: str, number: int) -> subprocess.Popen[bytes]:
        assignment = replace(self._assignment, role=role, worker=number if role == WORKER else 0)
        variables = {**clean_environment(), "OMP_NUM_THREADS": "1", **assignment.variables()}
        with (self._folder / f"{role}-{number}").open("wb") as output:
            return subprocess.Popen(
                command, cwd=ROOT, env=variables, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    def wait(self, seconds: float = 120) -> list[int]:
        """Wait for the workers; returns their statuses."""
        return [process.wait(seconds) for process in self.workers]

    def is_running(self) -> bool:
        return all(process.poll() is None for process in self.workers)

    def said(self) -> str:
        files = sorted(path for path in self._folder.iterdir() if path.is_file())
        return "\n".join(f"{file.name}:\n{file.read_text()}" for file in files)

    def said_by(self, worker: int) -> str:
        return (self._folder / f"{WORKER}-{worker}").read_text()

    def __exit__(self, *_: object) -> None:
        for process in (*self.workers, *self.others):
            process.kill()
            process.wait(30)


def expected(turns: list[int]) -> list[dict]:
    """What each turn of ``main`` gets, in double precision."""
    weights, memory = [np.zeros(6), np.full(5, 10.0)], [np.zeros(6), np.zeros(5)]
    pulled, results = dict.fromkeys(turns, 0), []
    stale: dict[int, list[int]] = {}
    for version, worker in enumerate(turns):
        stale.setdefault(worker, []).append(version - pulled[worker] + 1)
        for index, decay in enumerate((0.125, 0.0)):
            total = 1 / stale[worker][-1] + decay * weights[index]
            memory[index] = 0.5 * memory[index] - total
            weights[index] = weights[index] + memory[index]
        pulled[worker] = version + 1
        means = [np.mean(found) for found in stale.values()]
        numbers = {"staleness": np.mean(means), "largest_staleness": max(map(max, stale.values()))}
        results.append({"version": version + 1, "weights": list(weights), **numbers})
    return results


def check(folder: Path, turns: list[int], nobody: int = -1) -> None:
    files = [number for number, turn in enumerate(turns) if turn != nobody]
    for number, wanted in zip(files, expected([turns[number] for number in files])):
        result = json.loads((folder / str(number)).read_text())
        assert result["version"] == wanted["version"]
        for weights, right in zip(result["weights"], wanted["weights"]):
            np.testing.assert_allclose(weights, right, rtol=1e-6, atol=1e-6)
        for name in ("staleness", "largest_staleness"):
            assert result["numbers"][name] == pytest.approx(wanted[name])


def test_a_scripted_order_has_exactly_the_expected_staleness(tmp_path: Path) -> None:
    turns = [0, 1, 2, 2, 0, 0, 1, 2]
    with ServerJob(tmp_path / "out", *SCRIPT, tmp_path, *turns, workers=3, servers=2) as job:
        assert job.wait() == [0, 0, 0], job.said()
    check(tmp_path, turns)


def records(models: Path, name: str) -> list[dict]:
    """A run's records with a value of this name: lr in reports, target in validations."""
    lines = (models / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if name in record]


@pytest.mark.thorough
def test_bsp_is_horovods_allreduce(tmp_path: Path) -> None:
    """Five steps, at a rate that does not make the loss jump: that would multiply rounding."""
    options = [*SMALL, "--num-images", 400, "--num-examples", 320, "--epochs", 1, "--lr", 0.002]
    program = [sys.executable, "classify.py", *options, "--models-root", tmp_path / "horovod"]
    finish(*ranks("--gloo", 2), *program)
    options += ["--kv-store", "dist_sync", "--models-root", tmp_path / "servers", "--frequent", 1]
    with ServerJob(tmp_path / "out", "classify.py", *options, workers=2) as job:
        assert job.wait() == [0, 0], job.said()
    ours, theirs = (
        mx.nd.load(str(tmp_path / name / "model-0000.params")) for name in ("servers", "horovod")
    )
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name].asnumpy(), array.asnumpy(), rtol=0, atol=1e-5)
    assert records(tmp_path / "servers", "lr")[-1]["update"] == 5


@pytest.mark.thorough
def test_a_signal_to_one_worker_stops_all_and_all_resume_later(tmp_path: Path) -> None:
    models = tmp_path / "models"
    options = [*SMALL, "--num-images", 640, "--epochs", 40, "--lr", 0.02, "--frequent", 1]
    options += ["--kv-store", "dist_async", "--models-root", models, "--lr-schedule", "poly"]
    with ServerJob(tmp_path / "first", "classify.py", *options, workers=2) as job:
        job.wait_until(lambda: "epoch 1:" in job.said_by(0))
        job.workers[1].send_signal(signal.SIGTERM)
        assert job.wait() == [143, 143], job.said()
    saved = max((models / "checkpoints").glob("update-*"))
    before = records(models, "lr")[-1]
    assert 10 <= int(saved.name[7:]) == before["update"] < 400
    epochs = before["update"] // 10 + 2
    command = ["classify.py", *options, "--epochs", epochs]
    with ServerJob(tmp_path / "second", *command, workers=2) as job:
        assert job.wait() == [0, 0], job.said()
    assert f"resumed at update {before['update']} from" in job.said_by(0)
    after = records(models, "lr")
    assert after[-1]["update"] == 10 * epochs
    first = next(record for record in after if record["update"] == before["update"] + 1)
    # Both make ten updates of the weights in an epoch; the other may already have made some.
    left = 1 - before["update"] / (10 * epochs)
    assert 0.02 * (left - 0.5 / epochs) ** 2 < first["lr"] <= 0.02 * left**2 * 1.001


@pytest.mark.grouping
def test_who_waits_for_others_is_not_ended(tmp_path: Path) -> None:
    """Eight steps of each of two workers, in jobs at once: most of the time they sleep."""
    stall, jobs = 4, {}
    with ExitStack() as stack:
        for scheme, options, slowness in (
            # Worker 0 waits at the end for three times as long as it may, while worker 1 trains.
            ("dist_async", [], {"1": {"step": 3 * stall / 8}, "patience": 1}),
            # Worker 1 waits within an update while worker 0 validates.
            ("dist_sync", [], {"0": {"validate": 2 * stall}}),
            ("dist_ssync", ["--staleness", 1], {"0": {"validate": 2 * stall}}),
        ):
            program = [*ALTERED, json.dumps(slowness), *SMALL, *options]
            program += ["--kv-store", scheme, "--models-root", tmp_path / scheme, "--epochs", 2]
            program += ["--stall-timeout", stall, "--num-images", 128, "--batch-size", 16]
            job = ServerJob(tmp_path / f"{scheme}-out", *program, workers=2)
            jobs[scheme] = stack.enter_context(job)
        for scheme, job in jobs.items():
            assert job.wait() == [0, 0], job.said()
            assert "update 8/8" in job.said_by(0)
            assert (tmp_path / scheme / "checkpoints/update-00000008/manifest.json").exists()


def test_an_asynchronous_scheme_trains(tmp_path: Path) -> None:
    models = tmp_path / "models"
    options = [*SMALL, "--num-images", 480, "--epochs", 3, "--lr", 0.005, "--num-classes", 4]
    options += ["--kv-store", "dist_ssync", "--staleness", 2, "--models-root", models]
    options += ["--frequent", 6]
    with ServerJob(tmp_path / "out", "classify.py", *options, workers=2) as job:
        assert job.wait() == [0, 0], job.said()
    assert len(records(models, "target")) == 3 and (models / "model-0000.params").exists()
    last = records(models, "lr")[-1]
    # All updates of the weights, half of them by the other, are counted by the learning rate.
    assert last["lr"] < 0.005 * 0.2
    assert last["staleness"] >= 1 and last["images_per_second/worker_1"] > 0
    assert max(record["lead"] for record in records(models, "lead")) <= 2


def gsp(folder: Path, groups: str, *program: object, workers: int) -> str:
    (folder / "groups").write_text(groups)
    launch = ["-m", "parallel.launch", "-n", workers, "-s", 1, "--groups", folder / "groups"]
    options = [*SMALL, "--num-classes", 4, "--lr", 0.005, "--kv-store", "dist_gsync"]
    models = ["--models-root", folder / "models"]
    words = (*launch, "--", sys.executable, *program, *options, *models)
    return finish(sys.executable, *words).stdout


def test_two_groups_train(tmp_path: Path) -> None:
    options = ["--num-images", 300, "--frequent", 1, "--epochs", 2]
    gsp(tmp_path, "127.0.0.1 127.0.0.1\n127.0.0.1\n", "classify.py", *options, workers=3)
    models = tmp_path / "models"
    assert [record["total"] for record in records(models, "target")] == [60, 60]
    last = records(models, "lr")[-1]
    assert last["update"] == 6
    assert last["images_per_second/group_0"] > 0 and last["images_per_second/group_1"] > 0
    # Half of the run or more is over, by the count of the weights' updates.
    assert last["lr"] < 0.7 * 2 * 0.005 and last["staleness"] >= 1


@pytest.mark.grouping
def test_new_groups_while_training(tmp_path: Path) -> None:
    """Workers 1 and 3 are slow, each in the group of a fast one; later all are alike."""
    speeds = json.dumps({"speeds": [[100, 25, 100, 25], [90] * 4]})
    program = [*ALTERED, speeds, "--num-images", "1600", "--frequent", "4"]
    program += ["--epochs", "3", "--rebalance", "1"]
    said = gsp(tmp_path, "127.0.0.1 127.0.0.1\n127.0.0.1 127.0.0.1\n", *program, workers=4)
    for line in (
        "100 25 100 25: groups 0,2 1,3, shares 0.400 0.100 0.400 0.100",
        "90 90 90 90: groups 0,1,2,3, shares 0.250 0.250 0.250 0.250",
    ):
        assert said.count(line) == 1, said
    reported, validated = records(tmp_path / "models", "lr"), records(tmp_path / "models", "target")
    # Twelve batches in a quarter of the images, twenty in two fifths of them.
    ends = [12, 12 + 20, 12 + 20 + 12]
    assert [record["update"] for record in reported] == list(range(4, ends[-1] + 1, 4))
    found = [(record["update"], record["epoch"], record["total"]) for record in validated]
    assert found == [(end, epoch, 320) for epoch, end in enumerate(ends, 1)]
    # Of four classes: most runs have more than 0.7 after three epochs, a rare one 0.66.
    assert validated[-1]["accuracy"] > 0.45
    rates = [sum(name.startswith("images_per_second/") for name in record) for record in reported]
    assert rates == [2] * 3 + [2] * 5 + [1] * 3
    # A group alone; and its updates are counted from the epochs that are over.
    assert reported[-1]["staleness"] == reported[-1]["largest_staleness"] == 1
    # The last of the 36 updates that three such epochs would have.
    assert reported[-1]["lr"] == pytest.approx(0.02 * 0.5 * (1 + math.cos(math.pi * 35 / 36)))


@contextmanager
def attack(addresses: list[str]):
    command = [sys.executable, attacker.__file__, "300", *addresses]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.thorough
def test_a_job_under_attack_has_the_result_of_another(tmp_path: Path) -> None:
    profiles = set(ROOT.glob("*.json"))
    with ServerJob(tmp_path / "out", *SCRIPT, tmp_path, *TURNS, workers=3, servers=2) as job:
        job.wait_until(lambda: (tmp_path / "2").exists())
        everyone = (*job.workers, *job.others)
        places = [place for process in everyone for place in listeners(process.pid)]
        assert len(places) == 6 and {address for address, _ in places} == {"127.0.0.1"}
        with attack([f"{address}:{port}" for address, port in places]) as process:
            assert process.stdout.readline() == "attacked\n"
            time.sleep(2)
            assert process.poll() is None
            assert [one.poll() for one in everyone] == [None] * 6, job.said()
            (tmp_path / str(GATE)).touch()
            assert job.wait() == [0, 0, 0], job.said()
            assert [one.poll() for one in job.others] == [None] * 3, job.said()
        assert "no process of this job" in job.said()
    check(tmp_path, TURNS, NOBODY)
    assert set(ROOT.glob("*.json")) == profiles


if __name__ == "__main__":
    main(Path(sys.argv[1]), [*map(int, sys.argv[2:])])
