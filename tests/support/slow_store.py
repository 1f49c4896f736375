"""``train.py`` with a store on a slow disk: each piece of rows waits before it is read or written.

python -m tests.support.slow_store OPTION...
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import train
from partial_fc.store.records import Records
from runtime.errors import run_program

SECONDS = 0.1


def slowed(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        time.sleep(SECONDS)
        return function(*arguments)

    return call


if __name__ == "__main__":
    for name in ("read", "write", "images"):
        setattr(Records, name, slowed(getattr(Records, name)))
    run_program(train.main)
