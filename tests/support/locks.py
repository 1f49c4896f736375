"""Who holds the lock of a run's folder."""

from __future__ import annotations

import fcntl
from pathlib import Path


def holder(models: Path) -> str:
    """What the run that has the folder says of itself; empty if none has it."""
    with (models / "run.lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read()
    return ""
