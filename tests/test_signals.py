"""Tests that send signals also work where whoever started them ignores these (``nohup``, ``&``)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Started with SIGINT and SIGHUP ignored; it gets both, then asks a child how it takes them.
PROGRAM = """
import os, signal, subprocess, sys
from tests.support.signals import keep_ignored_signals_from_children

keep_ignored_signals_from_children()
for number in (signal.SIGINT, signal.SIGHUP):
    os.kill(os.getpid(), number)
child = "import signal; print(*(signal.getsignal(n).name for n in (signal.SIGHUP, signal.SIGTERM)))"
child += "; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
subprocess.run([sys.executable, "-c", child], check=True)
"""


def test_children_take_the_signals_that_this_process_was_told_to_ignore() -> None:
    result = subprocess.run(
        ["sh", "-c", 'trap "" INT HUP; exec "$0" -c "$1"', sys.executable, PROGRAM],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (result.returncode, result.stdout) == (0, "SIG_DFL SIG_DFL\nTrue\n"), result.stderr
