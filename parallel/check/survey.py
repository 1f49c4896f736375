"""What all hosts say and what they measure between them, of which findings and table are made."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

from parallel.check.facts import Facts
from parallel.check.hosts import Finding, HostError, Probe
from parallel.check.probe import KEY_BYTES
from parallel.launch.ssh import Sessions


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
        _Conversation(found, probes, pool).run()
        list(pool.map(Probe.close, probes.values()))
    return found


class _Conversation:
    """The questions to all probes, in their order."""

    def __init__(
        self, found: Survey, probes: Mapping[str, Probe], pool: ThreadPoolExecutor
    ) -> None:
        self._found, self._pool = found, pool
        self._probes = dict(probes)
        self._key = secrets.token_bytes(KEY_BYTES).hex()

    def run(self) -> None:
        answers = self._of(list(self._probes), lambda probe: probe.answer())
        self._found.facts.update(
            {host: Facts.received(answer["facts"]) for host, answer in answers.items()}
        )
        if len(self._probes) == 1:
            return
        ports = self._of(list(self._probes), self._listen)
        for pairs in rounds(list(self._probes)):
            self._measure(pairs, ports)

    def _of(
        self, hosts: Sequence[str], ask: Callable[[Probe], dict[str, Any]]
    ) -> dict[str, dict[str, Any]]:
        """The answers by host; those that fail are findings, and are asked nothing more."""
        futures = {host: self._pool.submit(ask, self._probes[host]) for host in hosts}
        answers = {}
        for host, future in futures.items():
            try:
                answers[host] = future.result()
            except HostError as error:
                self._found.silent.append(error.finding)
                del self._probes[host]
        return answers

    def _listen(self, probe: Probe) -> dict[str, Any]:
        """Have a probe listen where the others reach it; returns the ports by address."""
        others = [host for host in self._found.facts if host != probe.host]
        known = {self._found.address_of(probe.host, other) for other in others} - {None}
        answer = probe.ask(key=self._key, listen=sorted(map(str, known)), measure=[])
        return dict(answer["ports"])

    def _measure(
        self, pairs: Sequence[tuple[str, str]], ports: Mapping[str, Mapping[str, int]]
    ) -> None:
        """Have the first host of each pair connect to the second."""
        ways: dict[str, list[Any]] = {}
        for sender, receiver in pairs:
            if not {sender, receiver} <= self._probes.keys():
                # One that does not answer any more is gone.
                continue
            address = self._found.address_of(receiver, sender)
            if address is None:
                # Without such an interface, there is a finding already.
                continue
            if address in ports[receiver]:
                ways[sender] = [address, ports[receiver][address]]
            else:
                pair = Pair(sender, receiver, None, f"it has no address {address}")
                self._found.pairs.append(pair)
        answers = self._of(
            list(ways),
            lambda probe: probe.ask(key=self._key, listen=[], measure=ways[probe.host]),
        )
        for sender, answer in answers.items():
            pair = Pair(
                sender, dict(pairs)[sender], answer.get("bandwidth"), answer.get("error", "")
            )
            self._found.pairs.append(pair)


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
