"""``python -m tests.support.trying_child``: does what the content of a request says."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

from runtime.errors import DataError
from runtime.untrusted.child import serve


def answer(header: dict[str, Any], content: bytes) -> None:
    kind = content.decode()
    if kind == "crash":
        ctypes.string_at(0)
    elif kind == "end":
        os._exit(3)
    elif kind == "loop":
        while True:
            pass
    elif kind == "wait":
        time.sleep(1000)
    elif kind == "memory":
        bytearray(header["memory"] * 2)
    elif kind == "write":
        Path(header["path"]).write_bytes(b"a")
    elif kind == "refuse":
        raise DataError("no \x1b[2Jnetwork\nof lines")
    elif kind == "print":
        os.write(1, b"null\n" * 10)


if __name__ == "__main__":
    serve(answer)
