"""What a run writes for its report beside its metrics, and the call that makes the report.

``evaluation.report`` makes the page from the folder of the run alone, also on another machine, so
what it shows and the metrics lack is written here: where and with what the run was started, a sheet
of training images, the scores of the last verification. A run must not end, wait or change its exit
status because of that: whatever goes wrong is a line in the log. The page is made by a process of
its own, which may crash, hang or lack matplotlib.
"""

from __future__ import annotations

import io
import json
import logging
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Union

import numpy as np

from data.batches.loader import Batch
from data.inspect.sheets import draw_batch
from evaluation.report import run_files
from evaluation.verification import VerificationResult
from runtime import environment, installed, processors
from runtime.files import make_folder, read_file, write_atomically

_log = logging.getLogger(__name__)

_SECONDS = 120
_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = (
    *("horovod", "numpy", "numba", "opencv-python-headless", "scikit-learn", "scipy"),
    *("matplotlib", "protobuf", "mxboard"),
)


class ReportFiles:
    """The files for the report in the folder of a run; rank 0 has them."""

    def __init__(self, root: Path) -> None:
        self._root, self._folder = root, root / run_files.FOLDER
        self._has_samples = False

    def begin_part(self, update: int, facts: Mapping[str, Union[str, float]]) -> None:
        """Note that the run begins, or goes on, after ``update`` updates."""
        with _harmless("where the run was started"):
            make_folder(self._folder)
            path = self._folder / run_files.PARTS
            former = read_file(path) if path.exists() else b""
            part = {"time": round(time.time(), 3), "update": update, **facts, **_here()}
            write_atomically(path, former + json.dumps(part).encode() + b"\n")

    def sample(self, batch: Batch) -> None:
        """Write a sheet of images, once."""
        if not self._has_samples:
            self._has_samples = True
            with _harmless("training images"):
                sheet = draw_batch(batch.images, batch.labels)
                write_atomically(self._folder / run_files.SAMPLES, sheet)

    def verification(self, name: str, result: VerificationResult) -> None:
        """Write the scores of a verification over those of the one before."""
        if result.scores is not None:
            with _harmless(f"scores of {name}"):
                file = io.BytesIO()
                np.save(file, result.scores.astype(np.float32), allow_pickle=False)
                write_atomically(self._folder / run_files.scores_file(name), file.getvalue())

    def write_report(self) -> None:
        """Write the report, from all files of the run; returns when it is there."""
        with _harmless("the page"):
            done = subprocess.run(
                [sys.executable, "-m", "evaluation.report", str(self._root.resolve())],
                cwd=_ROOT,
                env=environment.variables(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
                # Not where mpirun's signals go, which ask this process alone to stop.
                start_new_session=True,
            )
            if done.returncode == 0:
                _log.info("report in %s", self._root / run_files.REPORT)
            else:
                lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
                _log.warning("no report: %s", lines[-1].removeprefix("error: "))


@contextmanager
def _harmless(what: str) -> Iterator[None]:
    """Say in the log that a part of the report is missing, and why; training goes on."""
    try:
        yield
    except Exception as error:
        _log.warning("the report lacks %s: %s: %s", what, type(error).__name__, error)


def _here() -> dict[str, Any]:
    """The machine, the command and the versions of this process."""
    package = installed.mxnet_package()
    versions = {"Python": platform.python_version()}
    for name in (package, *_PACKAGES):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    versions["system"] = platform.platform()
    return {
        "host": os.uname().nodename,
        "processor": processors.model(),
        "processors": processors.available(),
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "versions": versions,
    }
