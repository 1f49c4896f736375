"""What is wrong with several hosts together, and what to do: pure functions of what they say."""

from __future__ import annotations

from collections.abc import Iterator

from parallel.check.facts import MAKE_AGAIN, UNUSABLE
from parallel.check.survey import Finding, Survey

_SAME = {
    **dict.fromkeys(("Python", "MXNet", "Horovod", "Open MPI"), f"{MAKE_AGAIN} as on the other"),
    "project": "copy one over the other, or update both to the same commit",
}
"""The rows whose cells are the same on all hosts, and the remedy where they differ."""
# Bytes per second; a network of 1 Gbit/s has 118 million.
_LEAST_BANDWIDTH = 50_000_000.0
BRIDGES = ("lo", "docker0", "podman0", "cni0", "lxcbr0", "virbr0")
"""Interfaces that setup-utils/launchers/mpirun leaves out: hosts have equal addresses there."""


def findings(survey: Survey) -> list[Finding]:
    """Everything that is wrong, host by host in the order of the user."""
    found = [*survey.silent]
    for compare in (_versions, _names, _interfaces, _connections):
        found += compare(survey)
    for host, facts in survey.facts.items():
        found += [Finding(host, wrong) for wrong in facts.wrong]
    order = list(survey.slots)
    return sorted(found, key=lambda one: order.index(one.host))


def _versions(survey: Survey) -> Iterator[Finding]:
    """Packages and the project are those of the first host that has them."""
    for row, remedy in _SAME.items():
        cells = {host: facts.cells.get(row, UNUSABLE) for host, facts in survey.facts.items()}
        usable = {host: cell for host, cell in cells.items() if cell != UNUSABLE}
        for host, cell in usable.items():
            other, wanted = next(iter(usable.items()))
            if cell != wanted:
                yield Finding(host, f"{row} is {cell}, but {wanted} on {other}; {remedy}")


def _names(survey: Survey) -> Iterator[Finding]:
    """Horovod tells hosts apart by their names."""
    host_of: dict[str, str] = {}
    for host, facts in survey.facts.items():
        name = facts.hostname
        other = host_of.setdefault(name, host)
        if other != host:
            what = f"its hostname is {name}, as that of {other}: Horovod takes them for one"
            remedy = "hostnamectl set-hostname NAME there, or give it once in -H"
            yield Finding(host, f"{what}; {remedy}")


def _interfaces(survey: Survey) -> Iterator[Finding]:
    """The chosen interface is there; without a choice, none has the same address twice."""
    owners: dict[tuple[str, str], str] = {}
    for host, facts in survey.facts.items():
        if survey.nic is not None:
            if survey.nic not in facts.interfaces:
                what = f"it has no interface {survey.nic} with an IPv4 address"
                has = ", ".join(facts.interfaces)
                yield Finding(host, f"{what}; NIC is the same name on all hosts; it has {has}")
            continue
        for name, address in facts.interfaces.items():
            other = owners.setdefault((name, address), host)
            if other != host and name not in BRIDGES:
                what = f"its interface {name} has the address {address}, as that of {other}"
                reason = "Open MPI would wait for the other there"
                remedy = "choose an interface for all, as in NIC=eth1"
                yield Finding(host, f"{what}: {reason}; {remedy}")


def _connections(survey: Survey) -> Iterator[Finding]:
    """Every host connects to a port of every other one, and no link is slow."""
    for host in survey.facts:
        failed = [pair for pair in survey.pairs if pair.receiver == host and pair.error]
        if failed:
            senders = ", ".join(pair.sender for pair in failed)
            what = f"a port of it is not reached from {senders} ({failed[0].error})"
            remedy = "ranks listen on any port from 1024 up: open them in its firewall"
            yield Finding(host, f"{what}; {remedy}, or choose another interface by NIC")
        pair = survey.slowest(host)
        if pair is not None and pair.bandwidth < _LEAST_BANDWIDTH:
            rate, least = pair.bandwidth / 1e6, _LEAST_BANDWIDTH / 1e6
            what = f"it sends {rate:.3g} MB/s to {pair.receiver}, and {least:.3g} are expected"
            remedy = "look at the link (ethtool, other traffic), or choose a faster one by NIC"
            yield Finding(host, f"{what}; {remedy}")
