"""The conversation with the probe on each host, and what it means when a host does not answer."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from parallel.check.probe import BUSY, MARK
from parallel.launch import ssh
from parallel.launch.network_interface import is_own_name

SILENCE_SECONDS = 20.0
"""Without a sign of life, after which a host hangs."""
_END_SECONDS = 2.0
_LONGEST_LINE = 1 << 20
# By a pattern of ssh's status and lines: what is wrong, and the remedy.
_OF_SSH = (
    (r"IDENTIFICATION HAS CHANGED", "its host key is another one than known_hosts has",
     "if it was installed anew: ssh-keygen -R {host}, then ssh {host} once"),
    (r"Host key verification failed", "ssh does not know its host key",
     "compare and accept it: ssh {host}"),
    (r"Permission denied|Too many authentication failures", "ssh without a password is refused",
     "ssh-copy-id {host}"),
    (r"Could not resolve hostname", "ssh does not know this name",
     "correct -H, or add the name to /etc/hosts here"),
    (r"Connection refused", "nothing listens on its ssh port",
     "start sshd there, or give the port in ~/.ssh/config"),
    (r"No route to host|Network is unreachable", "there is no route to it",
     "look whether it runs and is in this network: ping {host}"),
    # It says nothing of a connection that breaks if the user's LogLevel is ERROR.
    (r"timed out|not responding|\A255\s*\Z", "ssh gets no answer",
     "look whether it runs, whether sshd hangs there, and at its firewall"),
    ("", "ssh fails ({last})", "try: ssh -oBatchMode=yes {host} true"),
)  # fmt: skip
# The same of the probe, or of the shell that starts it.
_OF_PROBE = (
    (r"\bcd: ", "the project is not in {folder} there", "copy it to the same path"),
    (r"\A12[67] ", "there is no {python}", "make env there, in {folder}, as on this host"),
    (r"No module named", "the project in {folder} is another one ({last})",
     "copy this one to the same path"),
    ("", "the probe has ended with status {status} ({last})",
     "try there, in {folder}: {python} -m parallel.check"),
)  # fmt: skip


class HostError(Exception):
    """Why a host has not answered, and the remedy."""


class Probe:
    """The probe on a host, which runs until ``close``."""

    def __init__(self, sessions: ssh.Sessions, host: str, models_root: Path) -> None:
        """Start it, by ssh unless it is this host.

        Raises:
            ConfigError: this machine has no ssh.
        """
        self.host = host
        words = (sys.executable, "-m", "parallel.check.probe", str(models_root))
        variables = ssh.variables_with_programs()
        # That of the user's own login, by which the probe on this host would take its address.
        variables.pop("SSH_CONNECTION", None)
        is_here = is_own_name(host)
        # A file: what nobody reads meanwhile would fill a pipe.
        self._errors = tempfile.TemporaryFile()
        self._process = sessions.start(
            words if is_here else ssh.command(host, words),
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._received = b""
        if not is_here:
            self._send(ssh.first_input({}))

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer; see ``answer``."""
        self._send(json.dumps(request).encode() + b"\n")
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Wait for an answer, which may be anything.

        Raises:
            HostError: there is none in time.
            RecursionError, ValueError: it is no JSON, or too long.
        """
        while True:
            line = self._line()
            if line.startswith(MARK.encode()):
                answer: dict[str, Any] = json.loads(line[len(MARK) :])
                if answer != BUSY:
                    return answer

    def close(self) -> None:
        """Close the probe's input, which ends it."""
        self._input.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._output.close()
        self._errors.close()

    def _send(self, data: bytes) -> None:
        # One that has ended says why where its answer is read.
        with suppress(OSError):
            self._input.write(data)

    def _line(self) -> bytes:
        ready = select.poll()
        ready.register(self._output, select.POLLIN)
        while b"\n" not in self._received:
            if len(self._received) > _LONGEST_LINE:
                raise ValueError("a line without an end")
            if not ready.poll(1000 * SILENCE_SECONDS):
                raise HostError(
                    f"it has given no sign of life for {SILENCE_SECONDS:.0f} s",
                    f"look there for processes and disks that hang: ssh {self.host} uptime",
                )
            chunk = os.read(self._output.fileno(), 1 << 16)
            if not chunk:
                raise self._ended()
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _ended(self) -> HostError:
        """Why the probe, or ssh, has ended."""
        try:
            status = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            status = -1
        self._errors.seek(0)
        return explain(self.host, status, self._errors.read(_LONGEST_LINE).decode(errors="replace"))


def explain(host: str, status: int, errors: str) -> HostError:
    """Why ssh to a host, or the probe there, has ended with a status and these lines."""
    values = {"host": host, "status": status, "last": ssh.last_line(errors)[:200]}
    values |= {"folder": Path.cwd(), "python": sys.executable}
    reasons = _OF_SSH if status == ssh.STATUS_OF_SSH else _OF_PROBE
    said = f"{status} {errors}"
    what, remedy = next(found for pattern, *found in reasons if re.search(pattern, said))
    return HostError(what.format(**values), remedy.format(**values))
