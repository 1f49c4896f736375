"""The scaling study says what was measured, and both exchanges train."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import scaling
from benchmarks.scaling import EXCHANGES, ScalingSetup
from benchmarks.scaling_runs import ALLREDUCE, ExchangeKind, ScalingCase, ScalingSpeed, run
from runtime.errors import ConfigError

MEASURED = {
    ScalingSetup(workers, exchange): [
        ScalingSpeed(10.0 * workers - 4 * exchange.servers_per_worker, 8_000_000)
    ]
    for workers in (1, 2)
    for exchange in EXCHANGES
}


@pytest.mark.parametrize(
    ("workers", "servers_per_worker", "sent"),
    [(1, 0, (0, 0)), (2, 0, (100, 0)), (4, 0, (150, 0)), (4, 1, (100, 100)), (4, 2, (100, 50))],
)
def test_bytes_of_an_update(workers: int, servers_per_worker: int, sent) -> None:
    assert scaling.bytes_sent(ScalingSetup(workers, ExchangeKind(servers_per_worker)), 100) == sent


def test_table_of_made_up_measurements() -> None:
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in scaling.table(MEASURED).splitlines()[2:]
    ]
    assert lines[0] == ["Allreduce, 1 worker", "10.0", "10.0 … 10.0", "1.000", "0.00", ""]
    assert lines[3] == ["Allreduce, 2 workers", "20.0", "20.0 … 20.0", "1.000", "8.00", ""]
    assert lines[5][0] == "parameter server 2:1, 2 workers"
    assert lines[5][3:] == ["0.600", "8.00", "4.00"]


def test_plot(tmp_path: Path) -> None:
    scaling.draw(MEASURED, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.launcher
@pytest.mark.parametrize(
    "exchange",
    [ALLREDUCE, pytest.param(ExchangeKind(1), marks=pytest.mark.classification)],
    ids=str,
)
def test_two_workers_train(exchange: ExchangeKind) -> None:
    speed = run(ScalingCase("LeNet", batch=4, updates=2, threads=1), exchange, workers=2)
    assert speed.images_per_second > 0
    # conv1, conv2, fc1 and the classifier: each with biases.
    assert speed.parameter_bytes == 4 * (1520 + 25_050 + 640_512 + 5_130)


def test_a_job_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="ResNet19"):
        run(ScalingCase("ResNet19", 4, 1, 1), ALLREDUCE, 1)


def test_a_wrong_model_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="ResNet19"):
        scaling.main(["--model", "ResNet19"])
