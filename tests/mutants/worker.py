"""Imports the libraries, which takes seconds, and forks for every mutant.

The product, which a mutant changes, is imported by the forked process alone. A job is a line of
JSON on stdin, its result one on stdout.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

# A changed size must not take the machine's memory. Disk is limited by a test's time alone, since
# tests make sparse files larger than any limit.
_MEMORY = 24 << 30
_PR_SET_CHILD_SUBREAPER = 36
_SECONDS_BETWEEN_LOOKS = 0.02
# Statuses of pytest: no failure; no test.
_PASSED = (0, 5)
# A test may take so many times what it took before, and a constant.
_TIMES_ITS_OWN = 6
_OPTIONS = ("-q", "-p", "no:cacheprovider", "--tb=short", "--hypothesis-seed=0")


class Order:
    """Tests that start processes last; notes times and the first failure."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.durations: defaultdict[str, float] = defaultdict(float)
        self.failed: list[str] = []
        self._job = job

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Sort the tests, and give each the time that it may take."""
        known, late = self._job["durations"], ("launcher", "learning")
        items.sort(key=lambda item: any(map(item.get_closest_marker, late)))
        for item in items:
            if item.nodeid in known:
                seconds = self._job["test_seconds"] + _TIMES_ITS_OWN * known[item.nodeid]
                item.add_marker(pytest.mark.timeout(seconds), append=False)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.durations[report.nodeid] += report.duration
        self.pytest_collectreport(report)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def _import_libraries() -> None:
    """Import what the product imports, and nothing of the product."""
    import cv2  # noqa: F401
    import hypothesis  # noqa: F401

    # The variables that the libraries read; MXNet and Numba themselves.
    import runtime.kernels  # noqa: F401
    import runtime.mxnet  # noqa: F401

    for name in list(sys.modules):
        if name.split(".")[0] in ("runtime", "tests"):
            del sys.modules[name]


def _child(job: dict[str, Any]) -> int:
    """Run the tests of a job in this process and leave the result in its folder."""
    folder, is_changed = Path(job["folder"]), job["is_changed"]
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(job["root"])
    (folder / "tmp").mkdir()
    # OpenCV has a variable of its own.
    tempfile.tempdir = os.environ["OPENCV_TEMP_PATH"] = os.environ["TMPDIR"] = str(folder / "tmp")
    # The one that another change was compiled to must not be found.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1" if is_changed else ""
    sys.dont_write_bytecode = is_changed
    sys.path[0] = job["root"]
    order = Order(job)
    status = int(pytest.main([*_OPTIONS, *["-x"] * is_changed, *job["tests"]], plugins=[order]))
    (folder / "result").write_text(json.dumps([order.durations, order.failed]))
    return status


def _run(job: dict[str, Any]) -> dict[str, Any]:
    """Fork, wait for the tests, end what they left; return what came out."""
    process = os.fork()
    if not process:
        exit_status = 70
        try:
            exit_status = _child(job)
        finally:
            sys.stdout.flush()
            os._exit(exit_status)
    status = _wait(process, time.monotonic() + job["seconds"])
    # This process inherits the orphans.
    while left := psutil.Process().children(recursive=True):
        for one in left:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(left, timeout=1)
    file = Path(job["folder"]) / "result"
    durations, failed = json.loads(file.read_text()) if file.exists() else ({}, [])
    return {"status": status, "durations": durations, "failed": failed}


def _wait(process: int, until: float) -> str:
    """Return how the process ended: "passed", "failed", "died" or "hung".

    Orphans that have ended are collected too: some launchers wait until theirs are gone.
    """
    while time.monotonic() < until:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == process:
            if os.WIFSIGNALED(status):
                return "died"
            return "passed" if os.WEXITSTATUS(status) in _PASSED else "failed"
        if not ended:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return "hung"


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _import_libraries()
    # Answers must not mix with what a library prints.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), file=answers, flush=True)
