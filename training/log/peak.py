"""The most memory that this process has had, as the kernel counts it."""

from __future__ import annotations

import re
from pathlib import Path


def peak_memory(status: Path = Path("/proc/self/status")) -> int:
    """Resident bytes of this process at their peak, shared pages included.

    ``getrusage`` would report the peak of the process that started this one, if it was larger.
    """
    match = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None, status
    return 1024 * int(match.group(1))
