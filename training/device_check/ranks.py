"""Starts two ranks, each with a device of its own; ``collectives`` is what they check."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from runtime import environment
from runtime.gpu_check import NOT_RUN, PASS, line

_RANKS = 2


def launch(devices: Sequence[str]) -> int:
    """Start the ranks with ``horovodrun``, which print their lines; returns its status.

    This process does not import MXNet, whose settings for a single rank they would inherit.
    """
    if len(devices) < _RANKS:
        print(line(NOT_RUN, "two ranks", f"there is no device beside {' '.join(devices)}"))
        return 0
    folder, variables = Path(sys.executable).parent, environment.variables()
    variables["PATH"] = os.pathsep.join((str(folder), variables.get("PATH", "")))
    # NCCL names its version when the ranks connect.
    variables.setdefault("NCCL_DEBUG", "VERSION")
    launcher = [str(folder / "horovodrun"), "-np", str(_RANKS), "-H", f"localhost:{_RANKS}"]
    rank = [sys.executable, "-W", "ignore", "-m", "training.device_check", "rank"]
    process = subprocess.Popen(
        [*launcher, *rank, *devices[:_RANKS]],
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        env=variables,
    )
    assert process.stdout is not None
    for text in process.stdout:
        version = re.search(r"NCCL version (\S+)", text)
        print(line(PASS, "NCCL", version[1]) if version else text.rstrip(), flush=True)
    return process.wait()
