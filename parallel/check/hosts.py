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
from typing import Any, NamedTuple

from parallel.check.probe import BUSY, MARK, NAME
from parallel.launch import ssh
from parallel.launch.network_interface import is_own_name

SILENCE_SECONDS = 20.0
"""Without a sign of life, after which a host hangs."""
_END_SECONDS = 2.0
_LONGEST_LINE = 1 << 20
# What ssh says, what that means and what helps.
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
    (r"timed out|not responding|\A\s*\Z", "ssh gets no answer",
     "look whether it runs, whether sshd hangs there, and at its firewall"),
)  # fmt: skip


class Finding(NamedTuple):
    """Something that is wrong."""

    host: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.host}: {self.what}; {self.remedy}"


class HostError(Exception):
    """A host that has not answered, with the finding."""

    def __init__(self, *finding: str) -> None:
        self.finding = Finding(*finding)
        super().__init__(str(self.finding))


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
            HostError: there is none in time, or one of another version of the check.
            RecursionError, ValueError: it is no JSON.
        """
        while True:
            line = self._line()
            if line.startswith(MARK.encode()):
                answer: dict[str, Any] = json.loads(line[len(MARK) :])
                if answer != BUSY:
                    return answer
            elif line.startswith(NAME.encode()) or len(line) > _LONGEST_LINE:
                raise HostError(
                    self.host,
                    "its project is another version than this one",
                    "copy this project to it, all of its files",
                )

    def close(self) -> None:
        """Close the probe's input, which ends it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._process.stdout.close()
        self._errors.close()

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        # One that has ended says why where its answer is read.
        with suppress(OSError):
            self._process.stdin.write(data)

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        ready = select.poll()
        ready.register(self._process.stdout, select.POLLIN)
        while b"\n" not in self._received and len(self._received) <= _LONGEST_LINE:
            if not ready.poll(1000 * SILENCE_SECONDS):
                raise HostError(
                    self.host,
                    f"it has given no sign of life for {SILENCE_SECONDS:.0f} s",
                    f"look there for processes and disks that hang: ssh {self.host} uptime",
                )
            chunk = os.read(self._process.stdout.fileno(), 1 << 16)
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
        said = self._errors.read(_LONGEST_LINE).decode(errors="replace")
        return HostError(*explain(self.host, status, said))


def explain(host: str, status: int, errors: str) -> Finding:
    """Why ssh to a host, or the probe there, has ended with a status and these lines."""
    last, folder = ssh.last_line(errors)[:200], Path.cwd()
    if status == ssh.STATUS_OF_SSH:
        for pattern, what, remedy in _OF_SSH:
            if re.search(pattern, errors):
                return Finding(host, what, remedy.format(host=host))
        return Finding(host, f"ssh fails ({last})", f"try: ssh -oBatchMode=yes {host} true")
    if re.search(r"\bcd: ", errors):
        return Finding(host, f"the project is not in {folder} there", "copy it to the same path")
    if sys.executable in errors and status in (126, 127):
        return Finding(
            host, f"there is no {sys.executable}", f"make env there, in {folder}, as on this host"
        )
    if "No module named" in errors:
        return Finding(
            host,
            f"the project in {folder} is another one ({last})",
            "copy this one to the same path",
        )
    return Finding(
        host, f"the probe has ended with status {status} ({last})",
        f"try there, in {folder}: {sys.executable} -m parallel.check",
    )  # fmt: skip
