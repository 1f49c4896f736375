"""What all hosts say and what they measure between them, of which findings and table are made."""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, TypeVar

from parallel.check.facts import Facts
from parallel.check.probe import MARK
from parallel.launch import ssh
from parallel.launch.network_interface import is_own_name

_Answer = TypeVar("_Answer")
SILENCE_SECONDS = 20.0
"""Without a sign of life, after which a host hangs."""
_END_SECONDS = 2.0


class Finding(NamedTuple):
    """Something that is wrong."""

    host: str
    what: str
    """With the remedy."""

    def __str__(self) -> str:
        return f"{self.host}: {self.what}"


class Pair(NamedTuple):
    """A connection of one host to another."""

    sender: str
    receiver: str
    bandwidth: float
    """Bytes per second."""
    error: str = ""
    """Why there is no connection."""


@dataclass(frozen=True)
class Survey:
    """What was found out; hosts that do not answer have no facts."""

    slots: Mapping[str, int]
    """The ranks of each host, in the order of the user."""
    nic: Optional[str] = None
    """The interface that is chosen for all hosts."""
    facts: dict[str, Facts] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)
    silent: list[Finding] = field(default_factory=list)
    """Of hosts that have not answered."""

    def address_of(self, receiver: str, sender: str) -> Optional[str]:
        """The address on which one host reaches another: of the chosen interface, or ssh's."""
        if self.nic is not None:
            has_both = self.nic in self.facts[sender].interfaces
            return self.facts[receiver].interfaces.get(self.nic) if has_both else None
        return self.facts[receiver].ssh_server or self.facts[sender].ssh_client

    def slowest(self, sender: str) -> Optional[Pair]:
        """The slowest of all connections of a host."""
        reached = [pair for pair in self.pairs if pair.sender == sender and not pair.error]
        return min(reached, key=lambda pair: pair.bandwidth, default=None)


def survey(slots: Mapping[str, int], models_root: Path, nic: Optional[str]) -> Survey:
    """Ask all hosts at the same time, then have them measure in pairs; no host stops the others."""
    found = Survey(slots, nic)
    with ThreadPoolExecutor(len(slots)) as pool, ExitStack() as stack:
        probes = {}
        for host, ranks in slots.items():
            probes[host] = Probe(host, str(models_root), str(ranks), str(len(slots)))
            stack.callback(probes[host].kill)
        _Conversation(found, dict(probes), pool).run()
        list(pool.map(Probe.close, probes.values()))
    return found


class HostError(Exception):
    """Why a host has not answered, and the remedy."""


class Probe:
    """The probe on a host, which runs until ``close``."""

    def __init__(self, host: str, *arguments: str) -> None:
        """Start it with its arguments, by ssh unless it is this host.

        Raises:
            ConfigError: this machine has no ssh.
        """
        self.host = host
        words: Sequence[str] = (sys.executable, "-m", "parallel.check.probe", *arguments)
        variables = ssh.variables_with_programs()
        # The user's own login sets it; the probe on this host would take that address for its own.
        variables.pop("SSH_CONNECTION", None)
        is_here = is_own_name(host)
        words = words if is_here else ssh.command(host, words)
        try:
            self._process = subprocess.Popen(
                words,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise ssh.not_started(words[0], error) from None
        self._last_line = b""
        self._answers: queue.SimpleQueue[Optional[bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
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
            RecursionError, ValueError: it is no JSON.
        """
        found: Optional[dict[str, Any]] = None
        while found is None:
            try:
                line = self._answers.get(timeout=SILENCE_SECONDS)
            except queue.Empty:
                raise HostError(
                    f"it has given no sign of life for {SILENCE_SECONDS:.0f} s; look there for "
                    f"processes and disks that hang: ssh {self.host} uptime"
                ) from None
            if line is None:
                raise self._ended()
            found = json.loads(line)
        return found

    def close(self) -> None:
        """Close the probe's input, which ends it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)

    def kill(self) -> None:
        """Kill what is left of it on this host, unless it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        # One that has ended says why where its answer is read.
        with suppress(OSError):
            self._process.stdin.write(data)

    def _read(self) -> None:
        """Pass on the answers, and None after the last; keep the last of the other lines."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                said, mark, answer = line.partition(MARK.encode())
                if mark:
                    self._answers.put(answer)
                else:
                    self._last_line = said.strip() or self._last_line
        self._answers.put(None)

    def _ended(self) -> HostError:
        """Why the probe, or ssh, has ended."""
        status = -1
        with suppress(subprocess.TimeoutExpired):
            status = self._process.wait(_END_SECONDS)
        last = ssh.last_line(self._last_line.decode(errors="replace"))[:200]
        if status == ssh.STATUS_OF_SSH:
            return HostError(
                f"no connection by ssh ({last}); it has to work without a question: ssh "
                f"-oBatchMode=yes {self.host} true"
            )
        return HostError(
            f"the check does not run there ({last}); copy this project to the same path, "
            f"{Path.cwd()}, and make env there"
        )


class _Conversation:
    """The questions to all probes, in their order."""

    def __init__(self, found: Survey, probes: dict[str, Probe], pool: ThreadPoolExecutor) -> None:
        self._found, self._probes, self._pool = found, probes, pool
        self._key = secrets.token_hex(32)
        self._ports: dict[str, dict[str, int]] = {}
        """By host: the port on which its probe listens, for each of its addresses."""

    def run(self) -> None:
        self._found.facts.update(self._of(self._probes, lambda probe: Facts(**probe.answer())))
        hosts = list(self._probes)
        if len(hosts) > 1:
            self._ports = self._of(hosts, self._listen)
        # Each host sends to one other and receives from one at a time, as ranks do.
        for distance in range(1, len(hosts)):
            pairs = zip(hosts, [*hosts[distance:], *hosts[:distance]])
            # A host that does not answer any more is gone.
            left = {one: other for one, other in pairs if {one, other} <= self._probes.keys()}
            measured = self._of(left, partial(self._measure, left))
            self._found.pairs.extend(filter(None, measured.values()))

    def _of(self, hosts: Iterable[str], ask: Callable[[Probe], _Answer]) -> dict[str, _Answer]:
        """The answers by host; those that fail are findings, and are asked nothing more."""
        futures = {host: self._pool.submit(ask, self._probes[host]) for host in hosts}
        answers = {}
        for host, future in futures.items():
            try:
                answers[host] = future.result()
                continue
            except HostError as error:
                what = str(error)
            except Exception as error:
                reason = str(error)[:60]
                what = f"its answer is not understood ({reason}); copy this project to it again"
            self._found.silent.append(Finding(host, what))
            del self._probes[host]
        return answers

    def _listen(self, probe: Probe) -> dict[str, int]:
        """Have a probe listen where the others reach it; returns the ports by address."""
        others = [host for host in self._found.facts if host != probe.host]
        known = {self._found.address_of(probe.host, other) for other in others} - {None}
        answer = probe.ask(key=self._key, listen=sorted(map(str, known)), measure=[])
        return dict(answer["ports"])

    def _measure(self, receivers: Mapping[str, str], probe: Probe) -> Optional[Pair]:
        """Have a host connect to its receiver."""
        receiver = receivers[probe.host]
        address = self._found.address_of(receiver, probe.host)
        if address is None:
            # Without such an interface, there is a finding already.
            return None
        port = self._ports[receiver].get(address)
        if port is None:
            return Pair(probe.host, receiver, 0.0, f"it has no address {address}")
        answer = probe.ask(key=self._key, listen=[], measure=[address, port])
        if "error" in answer:
            return Pair(probe.host, receiver, 0.0, str(answer["error"]))
        return Pair(probe.host, receiver, float(answer["bandwidth"]))
