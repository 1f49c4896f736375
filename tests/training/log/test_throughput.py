from __future__ import annotations

from pathlib import Path

import pytest

from runtime.stopwatch import BACKBONE, COMMUNICATION, HEAD, WAITING, Stopwatch
from training.log.run_log import peak_memory
from training.log.throughput import Meter, Throughput


def throughput(waiting: float, images: int = 2000, seconds: float = 10.0) -> Throughput:
    parts = {WAITING: waiting, BACKBONE: 5.0, HEAD: 1.0, COMMUNICATION: 0.25}
    return Throughput(images, seconds, parts)


def test_shares_and_judgements_in_words() -> None:
    both = throughput(0.5) + throughput(1.5, images=1000, seconds=20.0)
    assert both.images_per_second == pytest.approx(100.0)
    assert both.share(WAITING) == pytest.approx(2 / 30)
    assert both.share(COMMUNICATION) == pytest.approx(1 / 60)
    assert throughput(0.12).describe_shares() == (
        "waiting 1.2%, backbone 50.0%, head 10.0%, communication 2.5%, rest 36.3%"
    )
    assert "is not the bottleneck: 1.2% of the time" in throughput(0.12).judge_input()
    assert "a bottleneck: 2.0% of the time" in throughput(0.2).judge_input()
    said = throughput(2.0).judge_input()
    assert said.startswith("input is a bottleneck: 20.0% of the time went into waiting for data; ")
    assert "200 images/s would be 250 (docs/troubleshooting.md)" in said
    assert throughput(0.0).judge_debug().startswith("--debug: 200 images/s with batches from mem")


def test_the_total_leaves_out_the_first_interval_and_adds_up_the_others() -> None:
    now = [0.0]
    meter = Meter(lambda: now[0], Stopwatch(lambda: now[0]))
    assert meter.total() is None
    # The first is all there is at first.
    for update, seconds, images, expected in (
        (1, 100.0, 7, (7, 100.0)), (2, 2.0, 10, (10, 2.0)), (3, 3.0, 20, (30, 5.0)),
    ):  # fmt: skip
        now[0] += seconds
        meter.count(update, images)
        meter.report(0.5, 0.1, 4)
        whole = meter.total()
        assert (whole.images, whole.seconds) == expected


def test_a_sample_gives_the_shares_of_its_whole_interval() -> None:
    now = [0.0]
    stopwatch = Stopwatch(lambda: now[0])
    stopwatch.sample()
    meter = Meter(lambda: now[0], stopwatch)
    meter.start(0)
    now[0] += 28.0
    with meter.paused():
        now[0] += 100.0
    stopwatch.begin_sample()
    with stopwatch.part(HEAD):
        now[0] += 1.0
    now[0] += 3.0
    meter.count(1, 64)
    assert meter.report(0.5, 0.1, 1).head == pytest.approx(1 / 4)
    whole = meter.total()
    assert (whole.seconds, whole.parts[HEAD]) == (32.0, 8.0)


def test_the_peak_is_read_not_what_is_used_now(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t     300 kB\nVmRSS:\t 100 kB\n")
    assert peak_memory(status) == 300 * 1024
    # Of this process, which has loaded Python at least.
    assert 5 * 2**20 < peak_memory() < 2**40
