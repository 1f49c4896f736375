"""A worker with readers that are wrong, each in its way: does the campaign notice?"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

from runtime.errors import DataError
from tests.fuzz import readers, worker
from tests.fuzz.reader import Reader

_WRONG = 3


def _wrong_in(kind: str) -> Callable[[Path, bytes], None]:
    count = iter(range(-1, 1000))

    def read(folder: Path, content: bytes) -> None:
        if next(count) != _WRONG:
            raise DataError("refused")
        if kind == "dies":
            ctypes.string_at(0)
        elif kind == "hangs":
            time.sleep(1000)
        elif kind == "throws":
            raise IndexError("list index out of range")
        elif kind == "executes":
            os.system("true")

    return read


for _kind in ("dies", "hangs", "throws", "executes", "refuses"):
    readers.READERS[_kind] = Reader(lambda _: [b"abc"], _wrong_in(_kind), 1)

if __name__ == "__main__":
    worker.main()
