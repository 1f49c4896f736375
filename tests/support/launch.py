"""Starting programs and ranks from a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Optional

from runtime.environment import settings

ROOT = Path(__file__).resolve().parents[2]


def clean_environment() -> dict[str, str]:
    """This process's environment without what the import of MXNet put into it.

    Ranks have to choose for themselves: their threads are a share of the host's.
    """
    ours = set(settings())
    return {name: value for name, value in os.environ.items() if name not in ours}


def keep_ignored_signals_from_children() -> None:
    """Go on ignoring what this process ignores, as under ``nohup``; its children do not.

    A signal that a function handles has the system's default in a new program.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def ranks(controller: str, number: int) -> list[str]:
    """Words that start a command's ranks on this host; horovodrun's "--gloo" or "--mpi"."""
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    return [horovodrun, controller, "-np", str(number), "-H", f"localhost:{number}"]


def write_program(path: Path, script: str) -> Path:
    """Write a program; a script of bash if no first line says otherwise."""
    path.write_text(script if script.startswith("#!") else f"#!/usr/bin/env bash\n{script}")
    path.chmod(0o755)
    return path


def finish(
    *command: object,
    folder: Path = ROOT,
    status: Optional[int] = 0,
    seconds: float = 280,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, which has to have this status; None: any."""
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env={**clean_environment(), **variables},
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert status in (None, done.returncode), done.stdout + done.stderr
    return done
