"""``python -m runtime.gpu_check``: does the GPU of this machine compute what its processor does?

The developers had no GPU, so the report of a machine that has one says what their tests cannot.
The checks are in ``training/device_check``; here they are started as processes of their own, and
what they print becomes the report. So a driver that crashes or hangs costs some lines and not the
report; NVIDIA's libraries, which read their variables once, can be asked with and without TF32; and
this room imports none of those above it.
"""

from __future__ import annotations

import argparse
import getpass
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from runtime import environment
from runtime.command_line import Parser
from runtime.errors import USER_ERROR_STATUS, ConfigError, run_program

PASS, FAIL, NOT_RUN = "pass", "FAIL", "not run"
_MODULE = "training.device_check"
_TF32 = "NVIDIA_TF32_OVERRIDE"
_SECONDS = 240.0
_GRACE_SECONDS = 5.0
_ROOT = Path(__file__).resolve().parents[1]
# A launcher puts a prefix before what a rank prints, and before an end of line that comes later.
_PREFIX = r"(?:\[[\d,]+\]<stdout>:\s*)?"
_LINE = re.compile(rf"{_PREFIX}((?:{PASS}|{FAIL}|{NOT_RUN}) .*?){_PREFIX}$")
_WARNING = re.compile(r"cuDNN lib mismatch.*?compiled-against version \d+|Upgrade advisory:[^.]*")
_PATH = re.compile(r"(?<![\w.])(?:/[^\s/'\":;,()<>]+){2,}/?")


class NotRun(Exception):
    """A check that this machine cannot do, with the reason."""


class Wrong(Exception):
    """What is wrong, in one line."""


def checked(what: str, check: Callable[[], str]) -> str:
    """A line of the report: what a check returns, or why it failed or was not run."""
    try:
        return line(PASS, what, check())
    except NotRun as reason:
        return line(NOT_RUN, what, str(reason))
    except Wrong as reason:
        return line(FAIL, what, str(reason))
    except Exception as error:
        return line(FAIL, what, f"{type(error).__name__}: {_telling_line(str(error))}")


def _telling_line(text: str) -> str:
    """The line of an error that says what failed: those of MXNet have stacks of C++ around it."""
    lines = text.strip().splitlines() or [""]
    return next(
        (one for one in reversed(lines) if re.search("Check failed|Error:", one)), lines[-1]
    )


def line(status: str, what: str, detail: str) -> str:
    """A line of the report."""
    return f"{status:<8} {what}: {' '.join(detail.split())}"


class Part(NamedTuple):
    """Checks that share a process."""

    name: str
    variables: Mapping[str, Optional[str]] = {}
    """Of its environment; None unsets."""


BUILDS = Part("builds")
PARTS = (
    BUILDS,
    Part("contexts"),
    Part("updates", {_TF32: "0"}),
    Part("tf32", {_TF32: None}),
    Part("speed"),
    Part("ranks", {_TF32: "0"}),
)


def check(
    devices: Sequence[str] = (),
    parts: Sequence[Part] = PARTS,
    seconds: float = _SECONDS,
    report: Callable[[str], None] = print,
) -> int:
    """Run the checks and report line by line; returns how many failed.

    Args:
        devices: MXNet's names of contexts; without any, those of all GPUs. Tests pass "cpu(1)".
        parts: which checks.
        seconds: after which a part is ended.
        report: gets each line, without names of hosts, users and folders.

    Raises:
        ConfigError: MXNet is a build for processors, or sees no GPU.
    """
    counts = dict.fromkeys((PASS, FAIL, NOT_RUN), 0)
    notes = set()
    for part in parts:
        for text in _run(part, devices, seconds):
            if text in notes:
                continue
            status = next((one for one in counts if text.startswith(f"{one} ")), None)
            if status is None:
                notes.add(text)
            else:
                counts[status] += 1
            # What passes has our own words, in which a user's name would mean something else.
            report(text if status == PASS else anonymous(text))
    report(", ".join(f"{count} {status}" for status, count in counts.items()))
    return counts[FAIL]


def _run(part: Part, devices: Sequence[str], seconds: float) -> Iterator[str]:
    """Start a part; its lines, and one more if it does not come to its end."""
    variables = {**environment.variables(), **part.variables}
    command = [sys.executable, "-W", "ignore", "-m", _MODULE, part.name, *devices]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            cwd=_ROOT,
            env={name: value for name, value in variables.items() if value is not None},
            start_new_session=True,
        ) as process,
    ):
        start = time.monotonic()
        timer = threading.Timer(seconds, _end, [process])
        timer.start()
        try:
            assert process.stdout is not None
            found = (_LINE.match(text) for text in process.stdout)
            yield from (match[1] for match in found if match)
            status, is_late = process.wait(), time.monotonic() - start >= seconds
        finally:
            timer.cancel()
            _end(process)
        errors.seek(0)
        written = errors.read()
    yield from (f"note     MXNet: {warning}" for warning in _WARNING.findall(written))
    last = _telling_line(written) or "it wrote no error"
    if status == USER_ERROR_STATUS and part == BUILDS:
        raise ConfigError(last.removeprefix("error: "))
    if is_late:
        yield line(FAIL, part.name, f"not done after {seconds:g} seconds: {last}")
    elif status != 0:
        ended = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
        yield line(FAIL, part.name, f"{ended}: {last}")


def _end(process: subprocess.Popen[str]) -> None:
    """End a part and what it has started: a launcher needs the first signal to end its ranks."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
        os.killpg(process.pid, signal.SIGKILL)


def anonymous(text: str) -> str:
    """A line without the names of this host and its user, and of paths the last part alone."""
    folders = {str(_ROOT), str(Path.cwd()), sys.prefix, os.path.expanduser("~")} - {"/"}
    for folder in sorted(folders, key=len, reverse=True):
        text = text.replace(f"{folder}/", "/…/")
    text = _PATH.sub(lambda path: Path(path[0]).name, text)
    host = socket.gethostname()
    names = {host: "HOST", host.split(".")[0]: "HOST"}
    with suppress(KeyError, OSError):
        names[getpass.getuser()] = "USER"
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"\b{re.escape(name)}\b", names[name], text)
    return text


def main() -> int:
    """Check the GPUs; 0 if nothing failed, 1 if something did."""
    parser = Parser(
        prog="python -m runtime.gpu_check",
        description="Check what this machine's GPUs compute against its processor, in two minutes. "
        "The report names no host, user or folder, and can be sent as it is.",
    )
    # For the tests, which have no GPU.
    parser.add_argument("--devices", nargs="+", default=(), help=argparse.SUPPRESS)
    return 1 if check(parser.parse_args().devices) else 0


if __name__ == "__main__":
    run_program(main)
