"""Faults of names, interfaces and links: pure functions of the survey."""

from __future__ import annotations

import ipaddress
import statistics
from collections.abc import Iterator

from parallel.check.hosts import Finding, listed
from parallel.check.survey import Pair, Survey

LEAST_BANDWIDTH = 50_000_000.0
"""Bytes per second; a network of 1 Gbit/s has 118 million."""
LEAST_OF_MEDIAN = 0.25
"""Of the bandwidth of the other pairs, if there are several."""
SEVERAL_PAIRS = 6
# What setup-utils/launchers/mpirun leaves out: the same address on every host means nothing there.
BRIDGES = ("lo", "docker0", "podman0", "cni0", "lxcbr0", "virbr0")


def names(survey: Survey) -> Iterator[Finding]:
    """Horovod tells hosts apart by their names, and Gloo connects to what the names stand for."""
    host_of: dict[str, str] = {}
    for host, facts in survey.facts.items():
        other = host_of.setdefault(facts.hostname, host)
        if other != host:
            yield Finding(
                host,
                f"its hostname is {facts.hostname}, as that of {other}: Horovod takes them for one",
                "hostnamectl set-hostname NAME there, or give a host once in -H",
            )
        if len(survey.slots) == 1:
            continue
        address, means = facts.name_address, f"its name {facts.hostname} stands for"
        remedy = "Gloo's ranks connect to that: give the name the network's address in /etc/hosts"
        if address is None:
            yield Finding(host, f"its name {facts.hostname} is unknown to itself", remedy)
        elif ipaddress.ip_address(address).is_loopback:
            yield Finding(host, f"{means} {address}, which other hosts do not reach", remedy)
        elif address not in facts.interfaces.values():
            yield Finding(host, f"{means} {address}, which is no address of it", remedy)


def interfaces(survey: Survey) -> Iterator[Finding]:
    """The chosen interface is there; without a choice, none has the same address twice."""
    owners: dict[tuple[str, str], str] = {}
    for host, facts in survey.facts.items():
        if survey.nic is not None:
            if survey.nic not in facts.interfaces:
                yield Finding(
                    host,
                    f"it has no interface {survey.nic} with an IPv4 address",
                    f"NIC is the same name on all hosts; it has {listed(facts.interfaces)}",
                )
            continue
        for name, address in facts.interfaces.items():
            other = owners.setdefault((name, address), host)
            if other != host and name not in BRIDGES:
                yield Finding(
                    host,
                    f"its interface {name} has the address {address}, as that of {other}: Open MPI "
                    "would wait for the other there",
                    "choose an interface for all, as in NIC=eth1",
                )


def reachability(survey: Survey) -> Iterator[Finding]:
    """Every host connects to a port of every other one."""
    senders: dict[tuple[str, str], list[str]] = {}
    for pair in survey.pairs:
        if pair.link is None:
            senders.setdefault((pair.receiver, pair.error), []).append(pair.sender)
    for (receiver, error), those in senders.items():
        yield Finding(
            receiver,
            f"a port of it is not reached from {listed(those)} ({error})",
            "ranks listen on any port from 1024 up: open them between the hosts in its firewall"
            + ("" if survey.nic else ", or choose another interface by NIC"),
        )


def links(survey: Survey) -> Iterator[Finding]:
    """No link is much slower than a network of a cluster, or than the others."""
    linked = [pair for pair in survey.pairs if pair.link is not None]
    rates = [pair.link.bandwidth for pair in linked if pair.link]
    least = LEAST_BANDWIDTH
    if len(rates) >= SEVERAL_PAIRS:
        least = max(least, LEAST_OF_MEDIAN * statistics.median(rates))
    slow: dict[str, list[Pair]] = {}
    for pair in linked:
        if pair.link is not None and pair.link.bandwidth < least:
            slow.setdefault(pair.sender, []).append(pair)
    for sender, pairs in slow.items():
        worst = min(pair.link.bandwidth for pair in pairs if pair.link)
        yield Finding(
            sender,
            f"it sends {worst / 1e6:.3g} MB/s to {listed(pair.receiver for pair in pairs)}, and "
            f"{least / 1e6:.3g} are expected",
            "look at the link (ethtool, other traffic), or choose a faster one by NIC",
        )
