"""A kernel gives the same bits whether the process compiles it or loads it from the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def digests(cache: Path) -> list[str]:
    """What a new process makes of the same numbers, a line for each kernel."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-m", "tests.partial_fc.kernel_bits"]
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_bits_are_those_of_the_cache(tmp_path: Path) -> None:
    """A resumed run would otherwise end with other numbers, if its first process was the first."""
    compiled = digests(tmp_path)
    assert len(compiled) == 9 and list(tmp_path.rglob("*.nbc"))
    assert digests(tmp_path) == compiled
