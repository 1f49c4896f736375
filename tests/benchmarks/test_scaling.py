"""The scaling study says what was measured and what is the model's, and all exchanges train."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks import scaling, scaling_report
from benchmarks.scaling_model import Link
from benchmarks.scaling_report import ALONE
from benchmarks.scaling_runs import (
    ALLREDUCE,
    INDEPENDENT,
    RESULT,
    SERVERS,
    ExchangeKind,
    ScalingCase,
    ScalingSetup,
    ScalingSpeed,
    parse_hosts,
    read,
    run,
)
from runtime.errors import ConfigError
from tests.support.launch import clean_environment

HOSTS = ("host1", "host2")
TWO = ScalingSetup(2, ALLREDUCE)
# An update of 8 images takes a second alone; 40 ms of 8 MB over this link.
LINK = Link(start=0.032, latency=0.0, bandwidth=1e9)


def measured_once() -> dict[ScalingSetup, list[ScalingSpeed]]:
    """One round: what processes beside each other lose, and each exchange on top."""
    measured = {}
    for setup in scaling.setups((1, 2), dict.fromkeys(HOSTS, 1)):
        beside = 1.0 if setup.workers == 1 else 1.25
        exchange = {ALLREDUCE: 0.05, INDEPENDENT: 0.0}.get(setup.exchange, 0.1) * len(setup.hosts)
        update = beside + exchange
        link = LINK if setup.exchange == ALLREDUCE else None
        images = 8 * setup.workers / update
        measured[setup] = [ScalingSpeed(images, update, (6_000_000, 2_000_000), exchange, link)]
    return measured


def cells(table: str) -> dict[str, list[str]]:
    """The lines of a Markdown table by their first cell."""
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in rows}


def test_what_is_measured() -> None:
    names = [str(setup) for setup in scaling.setups((1, 2, 4), {"a": 2, "b": 1})]
    assert names == [
        "no exchange, 1 worker",
        "parameter server 1:1, 1 worker",
        "parameter server 2:1, 1 worker",
        *(
            f"{exchange}, {workers} workers"
            for workers in (2, 4)
            for exchange in (
                "no exchange", "Allreduce", "parameter server 1:1", "parameter server 2:1"
            )
        ),
        # Not four: the second host takes one.
        "Allreduce on 2 hosts, 2 workers",
        "parameter server 1:1 on 2 hosts, 2 workers",
        "parameter server 2:1 on 2 hosts, 2 workers",
    ]  # fmt: skip
    assert all(not setup.hosts[1:] for setup in scaling.setups((1, 2, 4), {}))


@pytest.mark.parametrize(
    ("workers", "exchange", "sent"),
    [
        (1, INDEPENDENT, (0, 0)),
        (2, INDEPENDENT, (0, 0)),
        (2, ALLREDUCE, (100, 0)),
        (4, ALLREDUCE, (150, 0)),
        (4, SERVERS[0], (100, 100)),
        (4, SERVERS[1], (100, 50)),
    ],
)
def test_bytes_of_an_update(workers: int, exchange: ExchangeKind, sent) -> None:
    assert scaling_report.bytes_sent(ScalingSetup(workers, exchange), 100) == sent


def test_table_of_made_up_measurements() -> None:
    rows = cells(scaling_report.table(measured_once()))
    assert rows["no exchange, 1 worker"] == ["8.0", "8.0 … 8.0", "1.000", "", "", "", ""]
    assert rows["no exchange, 2 workers"][2:] == ["0.800", "", "", "", ""]
    # 1 / 1.30 of one alone, 1.25 / 1.30 of two beside each other.
    assert rows["Allreduce, 2 workers"][2:] == ["0.769", "0.962", "50.0", "8.00", ""]
    assert rows["Allreduce on 2 hosts, 2 workers"][2:] == ["0.741", "0.926", "100.0", "8.00", ""]
    assert rows["parameter server 2:1, 2 workers"][4:] == ["100.0", "8.00", "4.00"]


def test_efficiency_is_the_median_of_the_rounds() -> None:
    """Not the ratio of medians: a slow minute of the machine is in both."""
    speeds = {ALONE: (10, 5, 8), TWO: (18, 9, 8)}
    measured = {
        setup: [ScalingSpeed(one, 1.0, (1,)) for one in row] for setup, row in speeds.items()
    }
    assert scaling_report.efficiency(TWO, measured) == 0.9


def test_model_beside_made_up_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.processors.available", lambda: 2)
    rows = cells(scaling_report.model_table(measured_once()))
    # 32 ms, and 8 MB once: 1 / 1.29; measured were 50 ms.
    assert rows["Allreduce, 2 workers"] == ["40.0", "50.0", "0.775", "0.769"]
    # 63/32 of 8 MB.
    assert rows["Allreduce, 64 workers"] == ["47.8", "–", "0.771", "–"]
    # What was measured with the fewest, for any number.
    assert rows["parameter server 1:1, 64 workers"] == ["100.0", "–", "0.741", "–"]
    assert rows["parameter server 1:1 on 2 hosts, 64 workers"] == ["200.0", "–", "0.690", "–"]
    assert len(rows) == 6 * 6


def test_processes_that_wait_for_a_processor_are_not_in_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.processors.available", lambda: 1)
    rows = cells(scaling_report.model_table(measured_once()))
    assert rows["Allreduce, 2 workers"] == ["40.0", "50.0", "0.962", "0.769"]


def test_plot(tmp_path: Path) -> None:
    scaling_report.draw(measured_once(), tmp_path / "scaling.svg")
    assert "<svg" in (tmp_path / "scaling.svg").read_text()


def test_rows_tell_measurement_and_model_apart() -> None:
    rows = scaling_report.rows_of("case", measured_once())
    of_two = {row.unit: row.value for row in rows if row.name == str(TWO)}
    assert of_two["of ideal scaling"] == pytest.approx(1 / 1.3)
    assert of_two["s per exchange"] == 0.05
    assert of_two["s per exchange by the model"] == pytest.approx(0.04)
    assert {row.unit for row in rows if "64" in row.name} == {
        "of ideal scaling by the model", "s per exchange by the model"
    }  # fmt: skip


def printed(*ends: float, exchange: float = 0.0) -> str:
    """The line of a worker, as horovodrun passes it on."""
    result = {"ends": ends, "messages": [8], "exchange": exchange, "probe": None}
    return f"[1,0]<stdout>:{RESULT}{json.dumps(result)}\n"


def test_processes_without_an_exchange_count_while_all_are_at_work() -> None:
    # The first is fast at first, until the second begins, and the second at last.
    first = printed(0, 1, 2, 3, 5, 7, 9)
    second = printed(4, 6, 8, 9, 10, 11)
    assert read(first + second, batch=8, workers=2) == ScalingSpeed(8.0, 2.0, (8,))
    with pytest.raises(RuntimeError, match="hardly at work together"):
        read(printed(0, 1, 2) + printed(3, 4, 5), batch=8, workers=2)


def test_the_slowest_worker_counts() -> None:
    output = printed(0, 1, 2, exchange=0.1) + printed(100, 104, 108, exchange=0.2)
    assert read(output, batch=8, workers=2) == ScalingSpeed(4.0, 4.0, (8,), 0.2)
    # As mpirun has been seen to pass two lines on.
    assert read(output.replace("\n", ""), batch=8, workers=2).update == 4.0
    with pytest.raises(RuntimeError, match="2 of 3 workers"):
        read(output, batch=8, workers=3)


@pytest.mark.launcher
@pytest.mark.measurements
@pytest.mark.parametrize("exchange", [INDEPENDENT, ALLREDUCE, SERVERS[0]], ids=str)
def test_two_workers_train(exchange: ExchangeKind, monkeypatch) -> None:
    # Another test may have imported MXNet, with which a process by itself is told to use Gloo.
    for name in os.environ.keys() - clean_environment().keys():
        monkeypatch.delenv(name)
    updates = 60 if exchange == INDEPENDENT else 2
    speed = run(ScalingCase("LeNet", 4, updates, threads=1), ScalingSetup(2, exchange))
    assert speed.images_per_second > 0
    assert (speed.exchange > 0) == (exchange != INDEPENDENT)
    assert (speed.link is not None) == (exchange == ALLREDUCE)
    # conv1, conv2, fc1 and the classifier, each with biases: what is above 1 MiB goes alone.
    assert speed.messages == (4 * (1520 + 25_050), 4 * 640_000, 4 * (512 + 5_130))


def test_a_job_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="ResNet19"):
        run(ScalingCase("ResNet19", 4, 1, 1), ALONE)


def test_hosts() -> None:
    assert parse_hosts("ip1:2,10.0.0.2:16") == {"ip1": 2, "10.0.0.2": 16}
    for wrong in ("ip1", "ip1:0", "ip1:2,", "-oProxyCommand=x:1", "ip1:2 ip2:2"):
        with pytest.raises(ConfigError, match="ip1:2,ip2:2"):
            parse_hosts(wrong)


def test_a_mistake_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="ResNet19"):
        scaling.main(["--model", "ResNet19"])
    monkeypatch.delenv("NIC", raising=False)
    with pytest.raises(ConfigError, match="NIC=eth0"):
        scaling.main(["-H", "ip1:1,ip2:1"])
