"""A program that reads a mapped file which is cut off meanwhile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import mmap, os, sys, threading
import numpy as np
from runtime.errors import run_program

def main():
    path = sys.argv[1]
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(mapped, np.uint8)
    print("read", array[-1], flush=True)
    os.truncate(path, 10)
    {read}
    print("never")

run_program(main)
"""


@pytest.mark.parametrize(
    "read",
    [
        "bytes(mapped[50_000:])",
        "array.sum()",
        "[t := threading.Thread(target=array.sum), t.start(), t.join()]",
        "memoryview(mapped)[70_000]",
    ],
)
def test_a_file_that_is_cut_off_is_named_in_one_line(tmp_path: Path, read: str) -> None:
    path = tmp_path / "a \x1bset.rec"
    path.write_bytes(bytes(100_000))
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{read}", read), str(path)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (2, "read 0\n"), result.stderr
    shown = str(path).replace("\x1b", r"\x1b")
    assert result.stderr.startswith(f"error: {shown} was cut off while it was in use")
    assert result.stderr.count("\n") == 1 and "start the same command again" in result.stderr
