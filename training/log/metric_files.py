"""The numbers of a run for other programs: JSON lines, and event files for TensorBoard."""

from __future__ import annotations

import json
import math
import os
import secrets
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Callable

from runtime.errors import DataError
from runtime.files import APPENDING, make_folder, open_kept

# Bytes; a record has some dozen numbers.
_LONGEST_RECORD = 1 << 20


class MetricFiles:
    """``metrics.jsonl`` and ``scalars/`` in the folder of a run; rank 0 has them."""

    def __init__(self, root: Path) -> None:
        """Open or continue the files; ``OSError`` if the folder cannot be written."""
        make_folder(root / "scalars")
        _drop_torn_line(root / "metrics.jsonl")
        self._lines = _Records(root / "metrics.jsonl")
        # TensorBoard takes files with this word in their names, in the order of the names. Without
        # random digits, others could guess the name of the file, and put a link there.
        about = f"{int(time.time())}.{os.uname().nodename}.{secrets.token_hex(6)}"
        self._events = _Records(root / "scalars" / f"events.out.tfevents.{about}")
        self._records_of = _event_records()

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
        self._lines.append(json.dumps(record).encode() + b"\n")
        values = {f"{target or 'training'}/{name}": value for name, value in numbers.items()}
        self._events.append(self._records_of(now, update, values))

    def close(self) -> None:
        """Close the files."""
        self._lines.close()
        self._events.close()


def _event_records() -> Callable[[float, int, Mapping[str, float]], bytes]:
    """Return a function that makes the records of scalars in an event file.

    mxboard's own writer would keep each number until the end of the run, and write in a thread.
    """
    # mxboard imports MXNet by itself, which works only after our own import of it.
    import runtime.mxnet  # noqa: F401

    # isort: split
    from mxboard.proto.event_pb2 import Event
    from mxboard.record_writer import masked_crc32c
    from mxboard.summary import scalar_summary

    def framed(content: bytes) -> bytes:
        length = struct.pack("<Q", len(content))
        first, last = (struct.pack("<I", masked_crc32c(part)) for part in (length, content))
        return length + first + content + last

    def records(seconds: float, update: int, values: Mapping[str, float]) -> bytes:
        events = (
            Event(wall_time=seconds, step=update, summary=scalar_summary(name, value))
            for name, value in values.items()
        )
        return b"".join(framed(event.SerializeToString()) for event in events)

    return records


def _drop_torn_line(path: Path) -> None:
    """Cut off what a power failure has left of a last record; the run makes its update again."""
    with open(open_kept(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
        begin = max(0, file.seek(0, os.SEEK_END) - _LONGEST_RECORD)
        file.seek(begin)
        last = file.read()
        if not last.endswith(b"\n") and (begin == 0 or b"\n" in last):
            file.truncate(begin + last.rfind(b"\n") + 1)


class _Records:
    """A file to which records are appended, each whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = open(open_kept(path, APPENDING), "ab", buffering=0)

    def append(self, record: bytes) -> None:
        """Write a record; ``DataError`` if the disk becomes full within it."""
        end = self._file.tell()
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
