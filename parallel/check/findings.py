"""What is wrong, and what to do about it: pure functions of what the hosts say.

What differs between hosts is compared with the first of them that answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from parallel.check.facts import Facts
from parallel.check.survey import Finding, Survey
from runtime import installed
from runtime.installed import dotted

GIBIBYTE, MEBIBYTE = 1 << 30, 1 << 20
# Below these a run fails or is slow; what is usual is far above.
_LEAST_MEMORY_PER_RANK = GIBIBYTE
_LEAST_SHARED_MEMORY_PER_RANK = 32 * MEBIBYTE
_LEAST_DISK = 2 * GIBIBYTE
# Bytes per second; a network of 1 Gbit/s has 118 million.
_LEAST_BANDWIDTH = 50_000_000.0
BRIDGES = ("lo", "docker0", "podman0", "cni0", "lxcbr0", "virbr0")
"""Interfaces that setup-utils/launchers/mpirun leaves out: hosts have equal addresses there."""
_MAKE_AGAIN = "remove .venv there and make env"
# What is wrong where a fact could not be found out, and the remedy.
_FAILURES = {
    "interfaces": ("psutil does not load", _MAKE_AGAIN),
    "mxnet": ("MXNet does not load as it should", f"{_MAKE_AGAIN}; for GPUs see docs/gpu.md"),
    "horovod_lacks": ("Horovod does not load", _MAKE_AGAIN),
    "open_mpi": ("mpirun cannot be used", _MAKE_AGAIN),
    "project": ("the files of the project cannot be read", "copy the project there again"),
    "disk": ("--models-root cannot be used", "give one that can be written"),
}

_Wrong = Iterator[tuple[str, str]]
"""Pairs of a fault of a host and the remedy."""


def findings(survey: Survey) -> list[Finding]:
    """Everything that is wrong, host by host in the order of the user."""
    found = [*survey.silent]
    for compare in (_versions, _names, _interfaces, _connections):
        found += compare(survey)
    for host, facts in survey.facts.items():
        ranks = survey.slots[host]
        for name, (what, remedy) in _FAILURES.items():
            if name in facts.errors:
                found.append(Finding(host, f"{what} ({facts.errors[name]})", remedy))
        for rule in (_installation(facts, ranks), _resources(facts, ranks)):
            found += [Finding(host, *wrong) for wrong in rule]
    order = list(survey.slots)
    return sorted(found, key=lambda one: order.index(one.host))


def size(count: int) -> str:
    """Bytes for readers."""
    return f"{count / GIBIBYTE:.1f} GiB" if count >= GIBIBYTE else f"{count / MEBIBYTE:.0f} MiB"


def _versions(survey: Survey) -> Iterator[Finding]:
    """Packages and the project are the same everywhere."""
    first: dict[str, tuple[str, str]] = {}
    packages, project = f"{_MAKE_AGAIN} as on the other host", "copy one over the other"
    for host, facts in survey.facts.items():
        for name, version, remedy in (
            ("Python", ".".join(facts.python.split(".")[:2]), packages),
            ("MXNet", f"{facts.mxnet_package} {facts.mxnet}" if facts.mxnet else "", packages),
            ("Horovod", facts.horovod, packages),
            ("Open MPI", facts.open_mpi, packages),
            ("the checksum of this project", facts.project, project),
        ):
            # One that is missing is a finding of its own.
            other, wanted = first.setdefault(name, (host, version)) if version else ("", version)
            if version != wanted:
                yield Finding(host, f"{name} is {version}, but {wanted} on {other}", remedy)


def _names(survey: Survey) -> Iterator[Finding]:
    """Horovod tells hosts apart by their names, and Gloo connects to what the names stand for."""
    host_of: dict[str, str] = {}
    for host, facts in survey.facts.items():
        name, address = facts.hostname, facts.name_address or "nothing"
        other = host_of.setdefault(name, host)
        if other != host:
            what = f"its hostname is {name}, as that of {other}: Horovod takes them for one"
            yield Finding(host, what, "hostnamectl set-hostname NAME there, or give it once in -H")
        is_reached = address in facts.interfaces.values() and not address.startswith("127.")
        if len(survey.slots) > 1 and not is_reached:
            what = f"its name {name} stands there for {address}, which other hosts do not reach"
            remedy = "Gloo's ranks connect to that: give the name the network's address in"
            yield Finding(host, what, f"{remedy} /etc/hosts")


def _interfaces(survey: Survey) -> Iterator[Finding]:
    """The chosen interface is there; without a choice, none has the same address twice."""
    owners: dict[tuple[str, str], str] = {}
    for host, facts in survey.facts.items():
        if survey.nic is not None:
            if survey.nic not in facts.interfaces:
                what = f"it has no interface {survey.nic} with an IPv4 address"
                has = ", ".join(facts.interfaces)
                yield Finding(host, what, f"NIC is the same name on all hosts; it has {has}")
            continue
        for name, address in facts.interfaces.items():
            other = owners.setdefault((name, address), host)
            if other != host and name not in BRIDGES:
                what = f"its interface {name} has the address {address}, as that of {other}"
                reason = "Open MPI would wait for the other there"
                remedy = "choose an interface for all, as in NIC=eth1"
                yield Finding(host, f"{what}: {reason}", remedy)


def _connections(survey: Survey) -> Iterator[Finding]:
    """Every host connects to a port of every other one, and no link is slow."""
    for host in survey.facts:
        failed = [pair for pair in survey.pairs if pair.receiver == host and pair.error]
        if failed:
            senders = ", ".join(pair.sender for pair in failed)
            what = f"a port of it is not reached from {senders} ({failed[0].error})"
            remedy = "ranks listen on any port from 1024 up: open them in its firewall"
            yield Finding(host, what, f"{remedy}, or choose another interface by NIC")
        pair = survey.slowest(host)
        if pair is not None and pair.bandwidth < _LEAST_BANDWIDTH:
            rate, least = pair.bandwidth / 1e6, _LEAST_BANDWIDTH / 1e6
            what = f"it sends {rate:.3g} MB/s to {pair.receiver}, and {least:.3g} are expected"
            remedy = "look at the link (ethtool, other traffic), or choose a faster one by NIC"
            yield Finding(host, what, remedy)


def _resources(facts: Facts, ranks: int) -> _Wrong:
    """Ranks have processors of their own and memory; their checkpoints have a disk."""
    if facts.memory < ranks * _LEAST_MEMORY_PER_RANK:
        what = f"{size(facts.memory)} of memory are free for {ranks} ranks"
        yield what, "end what uses it (top), or start fewer ranks there"
    if ranks > 1 and facts.shared_memory < ranks * _LEAST_SHARED_MEMORY_PER_RANK:
        what = f"{size(facts.shared_memory)} are free in /dev/shm, where {ranks} ranks exchange"
        yield what, "remove old files there, or docker run --shm-size=1g"
    if facts.disk is not None and facts.disk < _LEAST_DISK:
        what = f"{size(facts.disk)} are free on the disk of --models-root, for checkpoints"
        yield what, "remove old files, or give another --models-root"
    if ranks > facts.processors:
        what = f"{ranks} ranks would share {facts.processors} processors"
        yield what, f"give it no more than {facts.processors} ranks, or more processors"


def _installation(facts: Facts, ranks: int) -> _Wrong:
    """What ranks import is there, and goes with the GPUs, as ``runtime.devices`` assigns them."""
    count, package = len(facts.gpus), facts.mxnet_package
    cuda = installed.cuda_of(package)
    lacks = [part for part in facts.horovod_lacks if part != "NCCL" or cuda is not None]
    if lacks:
        yield f"Horovod is built without {', '.join(lacks)}", _MAKE_AGAIN
    if cuda is not None and "gpus" in facts.errors:
        what, _, remedy = facts.errors["gpus"].partition("; ")
        yield what, remedy or "look at nvidia-smi there"
    elif cuda is not None and not count:
        remedy = "repair its driver (nvidia-smi), leave it out, or CUDA_VISIBLE_DEVICES= for all"
        yield f"it has no GPU that ranks would see, but its MXNet is {package}", remedy
    if count and ranks > count:
        what = f"more ranks ({ranks}) than GPUs ({count})"
        yield what, f"give it no more than {count}, or show more by CUDA_VISIBLE_DEVICES"
    if count and facts.mxnet and cuda is None:
        remedy = "MXNET_PACKAGE=mxnet-cu112 make env there, or CUDA_VISIBLE_DEVICES= to do without"
        yield f"its MXNet is for processors and would not use its {count} GPUs", remedy
    if cuda is None:
        return
    names = {gpu.name for gpu in facts.gpus if gpu.runs(package) is False}
    if names:
        what = f"{package} has no machine code for {', '.join(sorted(names))}"
        yield what, "docs/gpu.md says which package has"
    driver = facts.cuda_of_driver
    if driver and installed.is_too_old(driver, 1000 * cuda[0] + 10 * cuda[1]):
        what = f"its driver is for CUDA {dotted(driver)}, too old for {package}"
        yield what, "install a newer driver"
