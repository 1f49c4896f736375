"""The peak is that of the process, also after its memory is free again."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from training.log.peak import peak_memory


def test_the_peak_is_read(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t     300 kB\nVmRSS:\t 100 kB\n")
    assert peak_memory(status) == 300 * 1024


def test_the_peak_stays() -> None:
    size = peak_memory() + 2**26
    array = np.ones(size, np.uint8)
    del array
    assert size < peak_memory() < 2 * size
