from __future__ import annotations

from pathlib import Path

from training.log.peak import peak_memory


def test_the_peak_is_read_not_what_is_used_now(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nVmPeak:\t  900 kB\nVmHWM:\t     300 kB\nVmRSS:\t 100 kB\n")
    assert peak_memory(status) == 300 * 1024
    # Of this process, which has loaded Python at least.
    assert 5 * 2**20 < peak_memory() < 2**40
