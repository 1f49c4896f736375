"""What all hosts say and what they measure between them, of which findings and table are made."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple, Optional, TypeVar

from parallel.check.facts import Facts
from parallel.check.hosts import Finding, HostError, Probe
from parallel.check.probe import KEY_BYTES
from parallel.launch.ssh import Sessions

_Answer = TypeVar("_Answer")
# Raised by the use of what has come as JSON, if it is none or something else.
_NOT_UNDERSTOOD = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
)


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
        if len(self._probes) == 1:
            return
        self._ports = self._of(self._probes, self._listen)
        for pairs in rounds(list(self._probes)):
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
                finding = error.finding
            except _NOT_UNDERSTOOD as error:
                what = f"its answer is not understood ({str(error)[:60]})"
                finding = Finding(host, what, "copy this project to it, all of its files")
            self._found.silent.append(finding)
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


def rounds(hosts: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """All ordered pairs of hosts, in rounds in which each host is in one pair at most.

    So many pairs are measured at the same time, and none disturbs another. (The circle method of
    round-robin tournaments, and each of its rounds once more in the other direction.)
    """
    circle: list[str] = [*hosts, ""] if len(hosts) % 2 else list(hosts)
    half = len(circle) // 2
    for _ in range(len(circle) - 1):
        pairs = [pair for pair in zip(circle[:half], reversed(circle[half:])) if "" not in pair]
        yield pairs
        yield [(receiver, sender) for sender, receiver in pairs]
        circle = [circle[0], circle[-1], *circle[1:-1]]
