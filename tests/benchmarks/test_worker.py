from __future__ import annotations

import pytest

from benchmarks.worker import Worker

TARGET = "tests.benchmarks.worker_subject:Subject"


def test_memory_above_what_the_subject_keeps() -> None:
    with Worker(TARGET, threads=3) as worker:
        worker.create({"mebibytes": 200, "threads": 3})
        worker.create({"mebibytes": 64, "threads": 3})
        assert worker.step() > 0.0
        peak = worker.peak_memory()
    if peak is None:
        pytest.skip("this kernel does not let a process reset its peak of memory")
    # The kernel counts pages by the dozen.
    assert peak / 2**20 == pytest.approx(64, abs=8)


def test_a_failing_subject_is_named() -> None:
    with Worker(TARGET, threads=1) as worker:
        worker.create({"mebibytes": 1, "threads": 1})
        worker.step()
        worker.step()
        with pytest.raises(RuntimeError, match="worker_subject:Subject ended with status 1"):
            worker.step()


def test_workers_end_with_their_block() -> None:
    with Worker(TARGET, threads=1) as worker:
        worker.create({"mebibytes": 1, "threads": 1})
        process = worker._process
        assert process.poll() is None
    assert process.poll() is not None
