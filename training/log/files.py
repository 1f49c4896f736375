"""The files of a rank's log; on rank 0 metrics, scalars for TensorBoard and the report, too.

The lines go to the file of each rank, and to the screen with its progress bar. Neither ends a run
when it cannot be written any more (its disk is full, its terminal or reader is gone): a warning is
printed, and the log continues on the other one.

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
import math
import os
import platform
import secrets
import shlex
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np

# mxboard imports MXNet by itself, which works only after our own import of it.
import runtime.mxnet  # noqa: F401

# isort: split
from mxboard.proto.event_pb2 import Event
from mxboard.record_writer import masked_crc32c
from mxboard.summary import scalar_summary
from tqdm import tqdm
from typing_extensions import override

from data.batches.loader import Batch
from data.inspect.sheets import draw_batch
from evaluation.report import run_files
from evaluation.verification import VerificationResult
from runtime import environment, installed, processors
from runtime.errors import DataError, discard, one_line, printable
from runtime.files import make_folder, open_kept, read_file, write_atomically

_log = logging.getLogger(__name__)

OFF_SCREEN = {"off_screen": True}
"""``extra`` of a record that goes to the file only."""
_BAR_FORMAT = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_inv_fmt}]{postfix}"

_SECONDS = 120
_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = (
    *("horovod", "numpy", "numba", "opencv-python-headless", "scikit-learn", "scipy"),
    *("matplotlib", "protobuf", "mxboard"),
)


class RunFiles:
    """``metrics.jsonl``, ``scalars/`` and ``report/`` in the folder of a run; rank 0 has them."""

    def __init__(self, root: Path) -> None:
        """Open or continue the files; ``OSError`` if the folder cannot be written."""
        self._root, self._folder = root, root / run_files.FOLDER
        make_folder(root / "scalars")
        self._metrics = _Records(root / "metrics.jsonl")
        # TensorBoard takes files with this word in their names, in the order of the names. Without
        # random digits, others could guess the name of the file, and put a link there.
        about = f"{int(time.time())}.{os.uname().nodename}.{secrets.token_hex(6)}"
        self._events = _Records(root / "scalars" / f"events.out.tfevents.{about}")

    def write(self, update: int, numbers: Mapping[str, float], target: str = "") -> None:
        """Write the numbers after ``update`` updates, of a verification if it has a ``target``.

        NaN and infinity, which JSON lacks, become null.

        Raises:
            DataError: the disk is full; the files then still end with a whole record.
        """
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        about = {"target": target} if target else {}
        now = time.time()
        record = {"time": round(now, 3), "update": update, **about, **finite}
        self._metrics.append(json.dumps(record).encode() + b"\n")
        # mxboard's own writer would keep each number until the end, and write in a thread.
        events = (
            Event(wall_time=now, step=update, summary=scalar_summary(name, value))
            for name, value in ((f"{target or 'training'}/{n}", v) for n, v in numbers.items())
        )
        self._events.append(b"".join(_framed(event.SerializeToString()) for event in events))

    def begin_part(self, update: int, facts: Mapping[str, object]) -> None:
        """Note that the run begins, or goes on, after ``update`` updates."""
        with _harmless("where the run was started"):
            make_folder(self._folder)
            path = self._folder / run_files.PARTS
            former = read_file(path) if path.exists() else b""
            part = {"time": round(time.time(), 3), "update": update, **facts, **_here()}
            write_atomically(path, former + json.dumps(part).encode() + b"\n")

    def sample(self, batch: Batch) -> None:
        """Write a sheet of images."""
        with _harmless("training images"):
            write_atomically(
                self._folder / run_files.SAMPLES, draw_batch(batch.images, batch.labels)
            )

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

    def close(self) -> None:
        """Close the files."""
        self._metrics.close()
        self._events.close()


def _framed(content: bytes) -> bytes:
    """Return a record of an event file: length and content, each with its checksum."""
    length = struct.pack("<Q", len(content))
    first, last = (struct.pack("<I", masked_crc32c(part)) for part in (length, content))
    return length + first + content + last


@contextmanager
def _harmless(what: str) -> Iterator[None]:
    """Say in the log that a part of the report is missing, and why; training goes on."""
    try:
        yield
    except Exception as error:
        _log.warning("the report lacks %s: %s: %s", what, type(error).__name__, error)


def _here() -> dict[str, Any]:
    """The machine, the command and the versions of this process."""
    versions = {"Python": platform.python_version()}
    for name in (installed.mxnet_package(), *_PACKAGES):
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


class _Records:
    """A file to which records are appended, each whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(path, "a+b", buffering=0, opener=open_kept)
        # A power failure may have cut off the last line; the run makes its update again.
        self._file.seek(0)
        content = self._file.readall()
        self._file.truncate(content.rfind(b"\n") + 1)

    def append(self, record: bytes) -> None:
        """Write a record; ``DataError`` if the disk becomes full within it."""
        end = self._file.seek(0, os.SEEK_END)
        try:
            while record:
                record = record[self._file.write(record) :]
        except OSError as error:
            self._file.truncate(end)
            raise DataError(
                f"{self._path} cannot be written ({error.strerror}); make room and start the same "
                "command again: it resumes from the last checkpoint"
            ) from None

    def close(self) -> None:
        self._file.close()


class LineFormatter(logging.Formatter):
    """Formats a message as one line, whatever a name in it holds; a traceback has several."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))

    @override
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class FileHandler(logging.FileHandler):
    """Writes the log file of a rank."""

    _has_failed = False

    def __init__(self, models_root: Path, rank: int) -> None:
        """Open the file to append to it; ``OSError`` if it cannot be written."""
        folder = models_root / "logs"
        make_folder(folder)
        # Names of files may hold bytes that are no characters.
        path = folder / f"rank-{rank:04d}.log"
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    @override
    def _open(self) -> TextIOWrapper:
        path, encoding = self.baseFilename, self.encoding
        return open(path, "a", encoding=encoding, errors=self.errors, opener=open_kept)

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_failed:
            self._has_failed = True
            what = f"{self.baseFilename} cannot be written ({error.strerror})"
            # The screen may be a file on the same disk.
            with suppress(OSError):
                print(f"warning: {what}; lines are missing from it", file=sys.stderr)

    @override
    def close(self) -> None:
        # There may be no room for what is still buffered.
        with suppress(OSError):
            super().close()


class ScreenHandler(logging.Handler):
    """Prints the lines of rank 0 and the warnings of the others on the standard output.

    On a terminal, rank 0 has a progress bar below the lines.

    Attributes:
        bar: the progress bar, which is disabled if there is none.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(logging.INFO if rank == 0 else logging.WARNING)
        self._stream = sys.stdout
        may_be_real = environment.allows_progress_bar()
        self._wants_bar = rank == 0 and may_be_real and self._stream.isatty()
        self.bar = tqdm(disable=True)

    def open_bar(self, total_updates: int, update: int) -> None:
        """Show a bar from ``update`` to ``total_updates``, if this is a terminal of rank 0."""
        self.bar.close()
        # If the terminal goes away, tqdm disables the bar.
        self.bar = tqdm(
            total=total_updates,
            initial=update,
            file=self._stream,
            bar_format=_BAR_FORMAT,
            dynamic_ncols=True,
            disable=not self._wants_bar,
        )

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "off_screen", False):
            return
        try:
            # tqdm removes an open bar, writes, and draws the bar again.
            tqdm.write(self.format(record), file=self._stream)
            self._stream.flush()
        except OSError as error:
            discard(self._stream)
            text = f"the screen cannot be written ({error.strerror}); the log continues in its file"
            _log.warning(text, extra=OFF_SCREEN)
            with suppress(OSError):
                print(f"warning: {text}", file=sys.stderr)
