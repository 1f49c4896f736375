"""The numbers of a run for other programs: JSON lines, and mxboard's event files."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runtime.errors import DataError
from runtime.files import APPENDING, make_folder, open_kept

# mxboard flushes in a thread; an error ends that thread only, and the next ``add_scalar`` blocks
# forever. So its interval is endless, and ``write`` flushes every record itself.
_NEVER_SECONDS = 1e12


class MetricFiles:
    """``metrics.jsonl`` and ``scalars/`` in the folder of a run; rank 0 has them."""

    def __init__(self, root: Path) -> None:
        """Open or continue the files.

        Raises:
            OSError: the folder cannot be written.
        """
        make_folder(root / "scalars")
        self._path = root / "metrics.jsonl"
        self._lines = open(open_kept(self._path, APPENDING), "ab", buffering=0)
        self._scalars = _open_scalars(root / "scalars")

    def write(self, update: int, numbers: Mapping[str, float], target: str = "") -> None:
        """Write the numbers after ``update`` updates, of a verification if it has a ``target``.

        NaN and infinity, which JSON lacks, become null.

        Raises:
            DataError: the disk is full; ``metrics.jsonl`` then still ends with a whole line.
        """
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        about = {"target": target} if target else {}
        record = {"time": round(time.time(), 3), "update": update, **about, **finite}
        try:
            self._append(json.dumps(record).encode() + b"\n")
            for name, value in numbers.items():
                self._scalars.add_scalar(f"{target or 'training'}/{name}", value, update)
            self._scalars.flush()
        except OSError as error:
            raise DataError(
                f"{self._path} cannot be written ({error.strerror}); make room and start the same "
                "command again: it resumes from the last checkpoint"
            ) from None

    def close(self) -> None:
        """Close the files; ``write`` has already raised an error for what is missing in them."""
        self._lines.close()
        with suppress(OSError):
            self._scalars.close()

    def _append(self, line: bytes) -> None:
        """Write a whole line or none, also if the disk becomes full within it."""
        end = self._lines.tell()
        try:
            while line:
                line = line[self._lines.write(line) :]
        except OSError:
            self._lines.truncate(end)
            raise


def _open_scalars(folder: Path) -> Any:
    # mxboard imports MXNet by itself, which works only after our own import of it.
    import runtime.mxnet  # noqa: F401

    # isort: split
    from mxboard import SummaryWriter

    # Without a suffix, others could guess the name of the file, and put a link there.
    return SummaryWriter(
        logdir=str(folder),
        flush_secs=_NEVER_SECONDS,
        filename_suffix=f".{secrets.token_hex(6)}",
        verbose=False,
    )
