"""What all hosts say and what they measure between them, of which findings and table are made."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypeVar

from parallel.check.facts import Facts
from parallel.check.probe import MARK
from parallel.launch import ssh
from parallel.launch.network_interface import is_own_name

_Answer = TypeVar("_Answer")
SILENCE_SECONDS = 20.0
"""Without a sign of life, after which a host hangs."""
_END_SECONDS = 2.0
_LONGEST_ANSWER = 1 << 20


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
    """Ask all hosts at the same time, then have them measure in pairs; no host stops the others.

    Raises:
        ConfigError: this machine has no ssh.
    """
    found = Survey(slots, nic)
    arguments = {host: (str(models_root), str(one), str(len(slots))) for host, one in slots.items()}
    asyncio.run(_converse(found, {host: Probe(host, *one) for host, one in arguments.items()}))
    return found


class HostError(Exception):
    """Why a host has not answered, and the remedy."""


class Probe:
    """The probe on a host, which runs from ``start`` to ``close``."""

    def __init__(self, host: str, *arguments: str) -> None:
        self.host = host
        self._words = (sys.executable, "-m", "parallel.check.probe", *arguments)
        self._last_line = b""

    async def start(self) -> None:
        """Start it, by ssh unless it is this host.

        Raises:
            ConfigError: this machine has no ssh.
        """
        variables = ssh.variables_with_programs()
        # The user's own login sets it; the probe on this host would take that address for its own.
        variables.pop("SSH_CONNECTION", None)
        is_here = is_own_name(self.host)
        words = self._words if is_here else ssh.command(self.host, self._words)
        self._process = await ssh.start(
            words,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            limit=_LONGEST_ANSWER,
        )
        if not is_here:
            self._send(ssh.first_input({}))

    async def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the answer; see ``answer``."""
        self._send(json.dumps(request).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        """Wait for an answer, which may be anything.

        Raises:
            HostError: there is none in time.
            RecursionError, ValueError: it is no JSON.
        """
        assert self._process.stdout is not None
        found: Optional[dict[str, Any]] = None
        while found is None:
            try:
                line = await asyncio.wait_for(self._process.stdout.readline(), SILENCE_SECONDS)
            except asyncio.TimeoutError:
                raise HostError(
                    f"it has given no sign of life for {SILENCE_SECONDS:.0f} s; look there for "
                    f"processes and disks that hang: ssh {self.host} uptime"
                ) from None
            if not line:
                raise await self._ended()
            said, mark, answer = line.partition(MARK.encode())
            if mark:
                found = json.loads(answer)
            else:
                self._last_line = said.strip() or self._last_line
        return found

    async def close(self) -> None:
        """Close the probe's input, which ends it; what does not end is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._process.wait(), _END_SECONDS)
        await ssh.kill(self._process)

    def _send(self, data: bytes) -> None:
        """Send data; of a probe that has ended, the end of its output says why."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    async def _ended(self) -> HostError:
        """Why the probe, or ssh, has ended."""
        status = -1
        with suppress(asyncio.TimeoutError):
            status = await asyncio.wait_for(self._process.wait(), _END_SECONDS)
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


async def _converse(found: Survey, probes: dict[str, Probe]) -> None:
    """Put the questions to all probes, in their order."""

    async def facts(probe: Probe) -> Facts:
        return Facts(**await probe.answer())

    started: list[Probe] = []
    try:
        for probe in probes.values():
            await probe.start()
            started.append(probe)
        found.facts.update(await _of(found, probes, {one.host: facts(one) for one in started}))
        if len(probes) > 1:
            await _measure(found, probes)
    finally:
        await asyncio.gather(*(probe.close() for probe in started))


async def _of(
    found: Survey, probes: dict[str, Probe], asked: Mapping[str, Awaitable[_Answer]]
) -> dict[str, _Answer]:
    """Return the answers by host; those that fail are findings, and are asked nothing more."""
    answers = {}
    for host, answer in zip(asked, await asyncio.gather(*asked.values(), return_exceptions=True)):
        if not isinstance(answer, BaseException):
            answers[host] = answer
            continue
        what = str(answer)
        if not isinstance(answer, HostError):
            what = f"its answer is not understood ({what[:60]}); copy this project to it again"
        found.silent.append(Finding(host, what))
        del probes[host]
    return answers


async def _measure(found: Survey, probes: dict[str, Probe]) -> None:
    """Have the hosts listen where the others reach them, and then measure in pairs."""
    key = secrets.token_hex(32)

    async def listen(probe: Probe) -> dict[str, int]:
        """Return the ports on which a probe listens, by its addresses."""
        others = [host for host in found.facts if host != probe.host]
        known = {found.address_of(probe.host, other) for other in others} - {None}
        answer = await probe.ask(key=key, listen=sorted(map(str, known)), measure=[])
        return dict(answer["ports"])

    async def measure(sender: str, receiver: str) -> Optional[Pair]:
        address = found.address_of(receiver, sender)
        if address is None:
            # Without such an interface, there is a finding already.
            return None
        port = ports[receiver].get(address)
        if port is None:
            return Pair(sender, receiver, 0.0, f"it has no address {address}")
        answer = await probes[sender].ask(key=key, listen=[], measure=[address, port])
        if "error" in answer:
            return Pair(sender, receiver, 0.0, str(answer["error"]))
        return Pair(sender, receiver, float(answer["bandwidth"]))

    hosts = list(probes)
    ports = await _of(found, probes, {host: listen(probe) for host, probe in probes.items()})
    # Each host sends to one other and receives from one at a time, as ranks do.
    for distance in range(1, len(hosts)):
        pairs = zip(hosts, [*hosts[distance:], *hosts[:distance]])
        # A host that does not answer any more is gone.
        left = {one: measure(one, other) for one, other in pairs if {one, other} <= {*probes}}
        found.pairs.extend(filter(None, (await _of(found, probes, left)).values()))
