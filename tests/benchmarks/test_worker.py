from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import worker
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


def test_workers_end_with_their_context() -> None:
    with Worker(TARGET, threads=1) as worker:
        worker.create({"mebibytes": 1, "threads": 1})
        process = worker._process
        assert process.poll() is None
    assert process.poll() is not None


def test_pytorch_has_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_PYTORCH_ENVIRONMENT", tmp_path)
    packages = tmp_path / "lib/python3.11/site-packages/torch-2.13.0.dist-info"
    packages.mkdir(parents=True)
    # Until its installation has ended, it is not there.
    assert worker.pytorch_python() is None
    (packages / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    (tmp_path / "installed").touch()
    assert worker.pytorch_python() == str(tmp_path / "bin/python")
    assert worker.pytorch_version() == "2.13.0"


def test_a_worker_runs_the_python_that_it_is_given(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nMARK=1 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    target = "tests.benchmarks.worker_subject:Subject"
    with Worker(target, 1, str(python)) as other:
        other.create({"mebibytes": 1, "threads": 1})
        variables = Path(f"/proc/{other._process.pid}/environ").read_bytes().split(b"\0")
    assert b"MARK=1" in variables
