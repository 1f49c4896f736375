"""Jobs of a scheduler, servers and workers as processes, on 127.0.0.1."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from runtime.mxnet import mx
from tests.support.launch import clean_environment
from tests.support.servers import ROOT, ServerJob

pytestmark = pytest.mark.launcher

# Seconds, most of which the imports take.
SMALL = ["--dataset", "synthetic", "--image-size", 16, "--batch-size", 32, "--threads", 1]


def expected(turns: list[int]) -> list[dict]:
    """What each turn of ``scripted_worker`` gets, in double precision."""
    weights, memory = [np.zeros(6), np.full(5, 10.0)], [np.zeros(6), np.zeros(5)]
    pulled, results = dict.fromkeys(turns, 0), []
    stale: dict[int, list[int]] = {worker: [] for worker in turns}
    for version, worker in enumerate(turns):
        stale[worker].append(version - pulled[worker] + 1)
        for index, decay in enumerate((0.125, 0.0)):
            total = 1 / stale[worker][-1] + decay * weights[index]
            memory[index] = 0.5 * memory[index] - total
            weights[index] = weights[index] + memory[index]
        pulled[worker] = version + 1
        results.append(
            {
                "version": version + 1,
                "weights": [weight.tolist() for weight in weights],
                "staleness": np.mean([np.mean(found) for found in stale.values() if found]),
                "largest": max(max(found) for found in stale.values() if found),
            }
        )
    return results


def check(folder: Path, turns: list[int], nobody: int = -1) -> None:
    """Compare what each turn of ``scripted_worker`` got, but for those of nobody."""
    files = [number for number, turn in enumerate(turns) if turn != nobody]
    for number, wanted in zip(files, expected([turns[number] for number in files])):
        result = json.loads((folder / str(number)).read_text())
        assert result["version"] == wanted["version"]
        for weights, right in zip(result["weights"], wanted["weights"]):
            np.testing.assert_allclose(weights, right, rtol=1e-6, atol=1e-6)
        assert result["numbers"]["staleness"] == pytest.approx(wanted["staleness"])
        assert result["numbers"]["largest_staleness"] == wanted["largest"]


def test_a_scripted_order_has_exactly_the_expected_staleness(tmp_path: Path) -> None:
    turns = [0, 1, 2, 2, 0, 0, 1, 2]
    script = ["-m", "tests.parallel.parameter_server.scripted_worker", tmp_path, *turns]
    with ServerJob(tmp_path / "out", *script, workers=3, servers=2) as job:
        assert job.wait() == [0, 0, 0], job.said()
    check(tmp_path, turns)


# A worker whose checkpoint, or whose host's, is another one.
UNEQUAL = """
import os
from parallel.parameter_server import assignment
from parallel.parameter_server.exchange import Exchange
from parallel.parameter_server.schemes import SCHEMES
from parallel.world import LoneWorld
from runtime.errors import run_program
from runtime.mxnet import mx

def main():
    own = assignment.find(os.environ)
    exchange = Exchange(SCHEMES["dist_sync"], own, LoneWorld(), staleness=None, images_per_step=1)
    weights = [mx.nd.ones((3, 2)), mx.nd.full((5,), 1 + 0.01 * own.worker)]
    exchange.start(weights, [1.0, 0.0], momentum=0.5, weight_decay=0.125, version=0)

run_program(main)
"""


@pytest.mark.thorough
def test_a_worker_that_begins_with_other_weights_ends_in_one_line(tmp_path: Path) -> None:
    with ServerJob(tmp_path / "out", "-c", UNEQUAL, workers=2) as job:
        while (statuses := [process.poll() for process in job.workers]) == [None, None]:
            time.sleep(0.05)
        # MXNet chooses the worker whose weights the servers take.
        number = statuses.index(2)
        assert "begins with other weights than the other hosts: their" in job.said_by(number)
        assert job.said_by(number).count("\n") == 1


def records(models: Path) -> list[dict]:
    return [json.loads(line) for line in (models / "metrics.jsonl").read_text().splitlines()]


def test_bsp_is_horovods_allreduce(tmp_path: Path) -> None:
    """Five steps, at a rate that does not make the loss jump: that would multiply rounding."""
    options = [*SMALL, "--num-images", 400, "--num-examples", 320, "--epochs", 1, "--lr", 0.002]
    launcher = [Path(sys.executable).with_name("horovodrun"), "--gloo", "-np", 2]
    command = [*launcher, "-H", "localhost:2", sys.executable, "classify.py", *options]
    horovod = subprocess.run(
        [*map(str, command), "--models-root", str(tmp_path / "horovod")],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert horovod.returncode == 0, horovod.stdout + horovod.stderr
    options += ["--kv-store", "dist_sync", "--models-root", tmp_path / "servers", "--frequent", 1]
    with ServerJob(tmp_path / "out", "classify.py", *options, workers=2) as job:
        assert job.wait() == [0, 0], job.said()
    ours, theirs = (
        mx.nd.load(str(tmp_path / name / "model-0000.params")) for name in ("servers", "horovod")
    )
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name].asnumpy(), array.asnumpy(), rtol=0, atol=1e-5)
    reports = [record for record in records(tmp_path / "servers") if "lr" in record]
    assert reports[-1]["update"] == 5


@pytest.mark.thorough
def test_a_signal_to_one_worker_stops_all_and_all_resume_later(tmp_path: Path) -> None:
    """With a checkpoint; the learning rate continues where it was."""
    models = tmp_path / "models"
    options = [*SMALL, "--num-images", 640, "--epochs", 40, "--lr", 0.02, "--frequent", 1]
    options += ["--kv-store", "dist_async", "--models-root", models, "--lr-schedule", "poly"]
    with ServerJob(tmp_path / "first", "classify.py", *options, workers=2) as job:
        job.wait_until(lambda: "epoch 1:" in job.said_by(0))
        job.workers[1].send_signal(signal.SIGTERM)
        assert job.wait() == [143, 143], job.said()
    saved = max((models / "checkpoints").glob("update-*"))
    before = [record for record in records(models) if "lr" in record][-1]
    assert 10 <= int(saved.name[7:]) == before["update"] < 400
    shorter = before["update"] // 10 + 2
    with ServerJob(tmp_path / "second", "classify.py", *options, "--epochs", shorter,
                   workers=2) as job:  # fmt: skip
        assert job.wait() == [0, 0], job.said()
    assert f"resumed at update {before['update']} from" in job.said_by(0)
    after = [record for record in records(models) if "lr" in record]
    assert after[-1]["update"] == 10 * shorter
    first = next(record for record in after if record["update"] == before["update"] + 1)
    # Both make ten updates of the weights in an epoch; the other may already have made some.
    left = 1 - before["update"] / (10 * shorter)
    assert 0.02 * (left - 0.5 / shorter) ** 2 < first["lr"] <= 0.02 * left**2 * 1.001


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        pytest.param("dist_async", [], marks=pytest.mark.thorough),
        ("dist_ssync", ["--staleness", 2]),
    ],
)
def test_an_asynchronous_scheme_learns(scheme: str, options: list, tmp_path: Path) -> None:
    models = tmp_path / "models"
    options = [*SMALL, *options, "--num-images", 1500, "--epochs", 3, "--lr", 0.005]
    options += ["--kv-store", scheme, "--models-root", models, "--frequent", 10, "--num-classes", 4]
    with ServerJob(tmp_path / "out", "classify.py", *options, workers=2) as job:
        assert job.wait() == [0, 0], job.said()
    found = records(models)
    validations = [record for record in found if record.get("target") == "validation"]
    assert len(validations) == 3 and validations[-1]["accuracy"] > 0.45
    (model,) = models.glob("model-0000.params")
    last = [record for record in found if "lr" in record][-1]
    # All updates of the weights, half of them by the other, are counted by the learning rate.
    assert last["lr"] < 0.005 * (0.1 if scheme == "dist_ssync" else 0.5)
    assert last["staleness"] >= 1 and last["images_per_second/worker_1"] > 0
    if scheme == "dist_ssync":
        assert max(record["lead"] for record in found if "lead" in record) <= 2
