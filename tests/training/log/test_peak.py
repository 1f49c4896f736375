"""The peak is that of the process, also after its memory is free again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from training.log.peak import peak_memory

SIZE = 2**28
# In a process of its own, whose peak is not that of all tests before.
SCRIPT = f"""
import numpy as np
from training.log.peak import peak_memory
before = peak_memory()
array = np.ones({SIZE}, np.uint8)
del array
print(before, peak_memory())
"""


def test_the_peak_is_read_and_stays(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t     300 kB\nVmRSS:\t 100 kB\n")
    assert peak_memory(status) == 300 * 1024
    said = subprocess.check_output(
        [sys.executable, "-c", SCRIPT], cwd=Path(__file__).resolve().parents[3], text=True
    )
    before, after = map(int, said.split())
    assert 0.9 * SIZE < after - before < 1.5 * SIZE
