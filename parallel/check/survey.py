"""What all hosts say and what they measure between them, of which findings and table are made."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple, Optional, TypeVar

from parallel.check.facts import Facts
from parallel.check.hosts import HostError, Probe
from parallel.check.probe import KEY_BYTES
from parallel.launch.ssh import Sessions

_Answer = TypeVar("_Answer")
# Raised by the use of what has come as JSON, if it is none or something else.
_NOT_UNDERSTOOD = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)


class Finding(NamedTuple):
    """Something that is wrong."""

    host: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.host}: {self.what}; {self.remedy}"


class Pair(NamedTuple):
    """A connection of one host to another."""

    sender: str
    receiver: str
    bandwidth: Optional[float]
    """Bytes per second; None if there is no connection."""
    error: str = ""
    """Why there is none."""


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


def survey(slots: Mapping[str, int], models_root: Path, nic: Optional[str]) -> Survey:
    """Ask all hosts at the same time, then have them measure in pairs; no host stops the others."""
    found = Survey(slots, nic)
    with ThreadPoolExecutor(len(slots)) as pool, Sessions() as sessions:
        probes = {host: Probe(sessions, host, models_root) for host in slots}
        _Conversation(found, dict(probes), pool).run()
        list(pool.map(Probe.close, probes.values()))
    return found


class _Conversation:
    """The questions to all probes, in their order."""

    def __init__(self, found: Survey, probes: dict[str, Probe], pool: ThreadPoolExecutor) -> None:
        self._found, self._probes, self._pool = found, probes, pool
        self._key = secrets.token_bytes(KEY_BYTES).hex()
        self._ports: dict[str, dict[str, int]] = {}
        """By host: the port on which its probe listens, for each of its addresses."""

    def run(self) -> None:
        facts = self._of(self._probes, lambda probe: Facts.received(probe.answer()["facts"]))
        self._found.facts.update(facts)
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
                what, remedy = error.args
            except _NOT_UNDERSTOOD as error:
                what = f"its answer is not understood ({str(error)[:60]})"
                remedy = "copy this project to it, all of its files"
            self._found.silent.append(Finding(host, what, remedy))
            del self._probes[host]
        return answers

    def _listen(self, probe: Probe) -> dict[str, int]:
        """Have a probe listen where the others reach it; returns the ports by address."""
        others = [host for host in self._found.facts if host != probe.host]
        known = {self._found.address_of(probe.host, other) for other in others} - {None}
        answer = probe.ask(key=self._key, listen=sorted(map(str, known)), measure=[])
        return {str(address): int(port) for address, port in answer["ports"].items()}

    def _measure(self, receivers: Mapping[str, str], probe: Probe) -> Optional[Pair]:
        """Have a host connect to its receiver."""
        receiver = receivers[probe.host]
        address = self._found.address_of(receiver, probe.host)
        if address is None:
            # Without such an interface, there is a finding already.
            return None
        port = self._ports[receiver].get(address)
        if port is None:
            return Pair(probe.host, receiver, None, f"it has no address {address}")
        answer = probe.ask(key=self._key, listen=[], measure=[address, port])
        if "error" in answer:
            return Pair(probe.host, receiver, None, str(answer["error"]))
        return Pair(probe.host, receiver, float(answer["bandwidth"]))
