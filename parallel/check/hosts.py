"""The conversation with the probe on each host, and what it means when a host does not answer."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, Optional

from parallel.check.probe import BUSY, MARK
from parallel.launch import ssh
from parallel.launch.network_interface import is_own_name

SILENCE_SECONDS = 20.0
"""Without a sign of life, after which a host hangs."""
# The probe itself limits what takes time.
_ANSWER_SECONDS = 90.0
_END_SECONDS = 2.0
_LONGEST_LINE = 1 << 20
_STDERR_BYTES = 1 << 14
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


def listed(names: Iterable[str]) -> str:
    """Names for a line."""
    return ", ".join(names)


class HostError(Exception):
    """A host that has not answered, with the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


class Probe:
    """The probe on a host, which runs until ``end``."""

    def __init__(self, host: str, models_root: Path) -> None:
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
        try:
            self._process = subprocess.Popen(
                words if is_here else ssh.command(host, words),
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C ends the check, which ends the probes.
                start_new_session=True,
            )
        except OSError as error:
            raise ssh.cannot_start(error) from None
        if not is_here:
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.write(ssh.first_input({}))
                self._process.stdin.flush()
        self._closed_at: Optional[float] = None
        self._lines: queue.SimpleQueue[Optional[bytes]] = queue.SimpleQueue()
        self._errors = b""
        self._threads = [
            threading.Thread(target=read, args=(stream,), daemon=True)
            for read, stream in (
                (self._read_lines, self._process.stdout),
                (self._read_errors, self._process.stderr),
            )
        ]
        for thread in self._threads:
            thread.start()

    def ask(self, request: dict[str, Any], expected: Iterable[str]) -> dict[str, Any]:
        """Send a request and return the answer, which has one of the expected keys.

        Raises:
            HostError: there is none in time, or another one.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None
        return self.answer(expected)

    def answer(self, expected: Iterable[str]) -> dict[str, Any]:
        """Wait for an answer; see ``ask``."""
        end = time.monotonic() + _ANSWER_SECONDS
        while time.monotonic() < end:
            try:
                line = self._lines.get(timeout=SILENCE_SECONDS)
            except queue.Empty:
                raise self.error(
                    f"it has given no sign of life for {SILENCE_SECONDS:.0f} s",
                    f"look there for processes and disks that hang: ssh {self.host} uptime",
                ) from None
            if line is None:
                raise self._ended()
            try:
                answer = json.loads(line)
            except (ValueError, RecursionError):
                answer = None
            if answer == BUSY:
                continue
            if not isinstance(answer, dict) or not answer.keys() & set(expected):
                raise self.not_understood(line.decode(errors="replace"))
            return answer
        raise self.error(
            f"it has not answered in {_ANSWER_SECONDS:.0f} s", f"look there: ssh {self.host} top"
        )

    def error(self, what: str, remedy: str) -> HostError:
        """The finding that ends the check of this host."""
        return HostError(Finding(self.host, what, remedy))

    def not_understood(self, text: str) -> HostError:
        """The finding for an answer that is none."""
        return self.error(
            f"its answer is not understood ({text[:60]!r})",
            "copy this project to it, all of its files",
        )

    def close(self) -> None:
        """Close the probe's input, which ends it."""
        assert self._process.stdin is not None
        with suppress(OSError):
            # What was left in its buffer has no reader.
            self._process.stdin.close()
        self._closed_at = time.monotonic()

    def end(self) -> None:
        """End the probe, or the connection to it, some seconds after its input was closed."""
        if self._closed_at is None:
            self.close()
        assert self._closed_at is not None
        try:
            self._process.wait(max(0.0, self._closed_at + _END_SECONDS - time.monotonic()))
        except subprocess.TimeoutExpired:
            # With the proxy that ssh may have started.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for thread in self._threads:
            thread.join(_END_SECONDS)

    def _read_lines(self, stream: IO[bytes]) -> None:
        mark = MARK.encode()
        with stream:
            while line := stream.readline(_LONGEST_LINE):
                if line.startswith(mark):
                    self._lines.put(line[len(mark) :])
        self._lines.put(None)

    def _read_errors(self, stream: IO[bytes]) -> None:
        with stream:
            while chunk := stream.read1(_STDERR_BYTES):  # type: ignore[attr-defined]
                self._errors = (self._errors + chunk)[-_STDERR_BYTES:]

    def _ended(self) -> HostError:
        """Why the probe, or ssh, has ended."""
        try:
            status = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            status = -1
        self._threads[1].join(_END_SECONDS)
        return HostError(explain(self.host, status, self._errors.decode(errors="replace")))


def explain(host: str, status: int, errors: str) -> Finding:
    """Why ssh to a host, or the probe there, has ended with a status and these lines."""
    last = errors.strip().splitlines()[-1].strip()[:200] if errors.strip() else "no reason given"
    folder = Path.cwd()
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
