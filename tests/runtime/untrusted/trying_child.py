"""``python -m tests.runtime.untrusted.trying_child``: does what the content of a request says."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.errors import DataError
from runtime.untrusted.child import serve


def answer(header: dict[str, Any], content: bytes) -> None:
    kind = content.decode()
    while kind == "loop":
        pass
    if kind == "refuse":
        raise DataError("no \x1b[2Jnetwork\nof lines")
    actions: dict[str, Callable[[], object]] = {
        "good": bytes,
        "crash": lambda: ctypes.string_at(0),
        "end": lambda: os._exit(3),
        "wait": lambda: time.sleep(1000),
        "memory": lambda: bytearray(header["memory"] * 2),
        "write": lambda: Path(header["path"]).write_bytes(b"a"),
        "print": lambda: os.write(1, b"null\n" * 10),
    }
    actions[kind]()


if __name__ == "__main__":
    serve(answer)
