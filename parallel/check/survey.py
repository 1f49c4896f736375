"""What all hosts say and what they measure between them, of which findings and table are made."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple, Optional, TypeVar

from parallel.check.facts import Facts, parse
from parallel.check.hosts import Finding, HostError, Probe
from parallel.check.network import KEY_BYTES, Link, rounds

_Result = TypeVar("_Result")


class Pair(NamedTuple):
    """A connection of one host to another."""

    sender: str
    receiver: str
    link: Optional[Link]
    """None if there is no connection."""
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


def survey(slots: Mapping[str, int], models_root: Path, nic: Optional[str]) -> Survey:
    """Ask all hosts at the same time, then have them measure in pairs; no host stops the others."""
    found = Survey(slots, nic)
    probes: dict[str, Probe] = {}
    with ThreadPoolExecutor(len(slots)) as pool:
        try:
            for host in slots:
                probes[host] = Probe(host, models_root)
            _Conversation(found, probes, pool).run()
        finally:
            for probe in probes.values():
                probe.close()
            for probe in probes.values():
                probe.end()
    return found


class _Conversation:
    """The questions to all probes, in their order."""

    def __init__(
        self, found: Survey, probes: Mapping[str, Probe], pool: ThreadPoolExecutor
    ) -> None:
        self._found, self._pool = found, pool
        self._probes = dict(probes)
        self._key = secrets.token_bytes(KEY_BYTES).hex()
        self._ports: dict[str, dict[str, int]] = {}

    def run(self) -> None:
        self._found.facts.update(self._of_all(_facts))
        if len(self._probes) > 1:
            self._ports = self._of_all(self._listen)
            for pairs in rounds(list(self._probes)):
                # One that has stopped to answer is gone.
                left = [pair for pair in pairs if set(pair) <= self._probes.keys()]
                ask = partial(self._measure, dict(left))
                measured = self._of([sender for sender, _ in left], ask)
                self._found.pairs.extend(pair for pair in measured.values() if pair)

    def _of_all(self, ask: Callable[[Probe], _Result]) -> dict[str, _Result]:
        return self._of(list(self._probes), ask)

    def _of(self, hosts: Sequence[str], ask: Callable[[Probe], _Result]) -> dict[str, _Result]:
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

    def _listen(self, probe: Probe) -> dict[str, int]:
        """Have a probe listen where the others reach it; returns the ports by address."""
        others = [host for host in self._found.facts if host != probe.host]
        known = {address_of(self._found, probe.host, other) for other in others} - {None}
        request = {"listen": sorted(map(str, known)), "key": self._key}
        try:
            ports: dict[str, int] = parse(dict[str, int], probe.ask(request, ["ports"])["ports"])
        except ValueError as error:
            raise probe.not_understood(str(error)) from None
        return ports

    def _measure(self, receivers: Mapping[str, str], probe: Probe) -> Optional[Pair]:
        receiver = receivers[probe.host]
        address = address_of(self._found, receiver, probe.host)
        if address is None:
            # No such interface, which is a finding itself.
            return None
        port = self._ports[receiver].get(address)
        if port is None:
            return Pair(probe.host, receiver, None, f"it has no address {address}")
        request = {"measure": [address, port], "key": self._key}
        answer = probe.ask(request, ["link", "error"])
        try:
            if "link" in answer:
                return Pair(probe.host, receiver, parse(Link, answer["link"]))
            return Pair(probe.host, receiver, None, parse(str, answer["error"]))
        except ValueError as error:
            raise probe.not_understood(str(error)) from None


def address_of(found: Survey, receiver: str, sender: str) -> Optional[str]:
    """The address on which one host reaches another: of the chosen interface, or as ssh did."""
    if found.nic is not None:
        has_both = found.nic in found.facts[sender].interfaces
        return found.facts[receiver].interfaces.get(found.nic) if has_both else None
    return found.facts[receiver].ssh_server or found.facts[sender].ssh_client


def _facts(probe: Probe) -> Facts:
    answer = probe.answer(["facts"])
    try:
        facts: Facts = parse(Facts, answer["facts"])
    except ValueError as error:
        raise probe.not_understood(str(error)) from None
    return facts
