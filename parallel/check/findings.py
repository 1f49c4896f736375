"""What is wrong, and what to do about it: pure functions of what the hosts say.

What differs between hosts is compared with the first of them that answers.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from parallel.check.facts import Facts
from parallel.check.survey import Finding, Pair, Survey
from runtime import installed
from runtime.installed import dotted

GIBIBYTE, MEBIBYTE = 1 << 30, 1 << 20
# Below these a run fails or is slow; what is usual is far above.
_LEAST_MEMORY_PER_RANK = GIBIBYTE
_LEAST_SHARED_MEMORY_PER_RANK = 32 * MEBIBYTE
_LEAST_DISK = 2 * GIBIBYTE
# The major versions that setup-utils/install-mpi.sh accepts.
_OPEN_MPI_VERSIONS = ("3.", "4.")
# Bytes per second; a network of 1 Gbit/s has 118 million.
_LEAST_BANDWIDTH = 50_000_000.0
# A pair is slow below this share of the pairs' median, if there are several pairs.
_LEAST_OF_MEDIAN = 0.25
_SEVERAL_PAIRS = 6
BRIDGES = ("lo", "docker0", "podman0", "cni0", "lxcbr0", "virbr0")
"""Interfaces that setup-utils/launchers/mpirun leaves out: hosts have equal addresses there."""
_MAKE_ENV, _MAKE_AGAIN = "make env there", "remove .venv there and make env"

_Wrong = Iterator[tuple[str, str]]
"""Pairs of a fault of a host and the remedy."""


def findings(survey: Survey) -> list[Finding]:
    """Everything that is wrong, host by host in the order of the user."""
    found = [*survey.silent]
    for compare in (_versions, _project, _names, _interfaces, _reachability, _links):
        found += compare(survey)
    with_gpus = next((host for host, facts in survey.facts.items() if facts.gpus), "")
    for host, facts in survey.facts.items():
        ranks = survey.slots[host]
        for rule in (_packages(facts), _room(facts, ranks), _gpus(facts, ranks, with_gpus)):
            found += [Finding(host, *wrong) for wrong in rule]
    order = list(survey.slots)
    return sorted(found, key=lambda one: order.index(one.host))


def size(count: int) -> str:
    """Bytes for readers."""
    return f"{count / GIBIBYTE:.1f} GiB" if count >= GIBIBYTE else f"{count / MEBIBYTE:.0f} MiB"


def _versions(survey: Survey) -> Iterator[Finding]:
    """Python, MXNet, Horovod and Open MPI are the same everywhere."""
    first: dict[str, tuple[str, str]] = {}
    for host, facts in survey.facts.items():
        for name, version in {
            "Python": ".".join(facts.python.split(".")[:2]),
            "MXNet": f"{facts.mxnet_package} {facts.mxnet}" if facts.mxnet else "",
            "Horovod": facts.horovod,
            "Open MPI": facts.open_mpi,
        }.items():
            # One that is missing is a finding of its own.
            other, wanted = first.setdefault(name, (host, version)) if version else ("", version)
            if version != wanted:
                what = f"{name} is {version}, but {wanted} on {other}"
                yield Finding(host, what, f"{_MAKE_AGAIN} as on the other host")


def _project(survey: Survey) -> Iterator[Finding]:
    """All hosts have the same files of the project."""
    first = next(iter(survey.facts), "")
    for host, facts in survey.facts.items():
        if "files" in facts.errors:
            what = f"the files of the project cannot be read ({facts.errors['files']})"
            yield Finding(host, what, "copy the project there again")
            continue
        others = survey.facts[first].files or facts.files
        different = sorted({name for name, _ in facts.files.items() ^ others.items()})
        if different:
            more = f" and {len(different) - 1} more differ" if len(different) > 1 else " differs"
            what = f"this project is not that of {first}: {different[0]}{more}"
            remedy = "copy one of the two over the other, or update both to the same commit"
            yield Finding(host, what, remedy)


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


def _reachability(survey: Survey) -> Iterator[Finding]:
    """Every host connects to a port of every other one."""
    senders: dict[tuple[str, str], list[str]] = {}
    for pair in survey.pairs:
        if pair.bandwidth is None:
            senders.setdefault((pair.receiver, pair.error), []).append(pair.sender)
    for (receiver, error), those in senders.items():
        what = f"a port of it is not reached from {', '.join(those)} ({error})"
        remedy = (
            "ranks listen on any port from 1024 up: open them in its firewall, or choose another"
        )
        yield Finding(receiver, what, f"{remedy} interface by NIC")


def _links(survey: Survey) -> Iterator[Finding]:
    """No link is much slower than a network of a cluster, or than the others."""
    rates = [pair.bandwidth for pair in survey.pairs if pair.bandwidth is not None]
    least = _LEAST_BANDWIDTH
    if len(rates) >= _SEVERAL_PAIRS:
        least = max(least, _LEAST_OF_MEDIAN * statistics.median(rates))
    slow: dict[str, list[Pair]] = {}
    for pair in survey.pairs:
        if pair.bandwidth is not None and pair.bandwidth < least:
            slow.setdefault(pair.sender, []).append(pair)
    for sender, pairs in slow.items():
        worst = min(pair.bandwidth or 0 for pair in pairs)
        receivers = ", ".join(pair.receiver for pair in pairs)
        what = f"it sends {worst / 1e6:.3g} MB/s to {receivers}, and {least / 1e6:.3g} are expected"
        remedy = "look at the link (ethtool, other traffic), or choose a faster one by NIC"
        yield Finding(sender, what, remedy)


def _packages(facts: Facts) -> _Wrong:
    """The host can import what a rank imports, and start it."""
    package, errors = facts.mxnet_package, facts.errors
    is_for_gpus = installed.cuda_of(package) is not None
    if package == "unknown":
        yield "MXNet is not installed", _MAKE_ENV
    elif "mxnet" in errors:
        remedy = "docs/gpu.md says which libraries it needs" if is_for_gpus else _MAKE_AGAIN
        yield f"{package} does not load as it should ({errors['mxnet']})", remedy
    lacks = [part for part in facts.horovod_lacks if part != "NCCL" or is_for_gpus]
    if facts.horovod is None:
        yield "Horovod is not installed", _MAKE_ENV
    elif "horovod_lacks" in errors:
        yield f"Horovod does not load ({errors['horovod_lacks']})", _MAKE_AGAIN
    elif lacks:
        yield f"Horovod is built without {', '.join(lacks)}", _MAKE_AGAIN
    if "interfaces" in errors:
        yield f"psutil does not load ({errors['interfaces']})", _MAKE_AGAIN
    if "open_mpi" in errors:
        yield errors["open_mpi"], _MAKE_ENV
    elif not (facts.open_mpi or "4.").startswith(_OPEN_MPI_VERSIONS):
        what = f"Open MPI {facts.open_mpi} starts ranks in another way"
        yield what, f"{_MAKE_ENV}, which brings version 4"


def _room(facts: Facts, ranks: int) -> _Wrong:
    """Ranks have processors of their own and memory; their checkpoints have a disk."""
    if facts.memory < ranks * _LEAST_MEMORY_PER_RANK:
        what = f"{size(facts.memory)} of memory are free for {ranks} ranks"
        yield what, "end what uses it (top), or start fewer ranks there"
    if ranks > 1 and facts.shared_memory < ranks * _LEAST_SHARED_MEMORY_PER_RANK:
        what = f"{size(facts.shared_memory)} are free in /dev/shm, where {ranks} ranks exchange"
        yield what, "remove old files there, or docker run --shm-size=1g"
    if facts.disk is None:
        what = f"--models-root cannot be used ({facts.errors.get('disk')})"
        yield what, "give one that can be written"
    elif facts.disk < _LEAST_DISK:
        what = f"{size(facts.disk)} are free on the disk of --models-root, for checkpoints"
        yield what, "remove old files, or give another --models-root"
    if ranks > facts.processors:
        what = f"{ranks} ranks would share {facts.processors} processors"
        yield what, f"give it no more than {facts.processors} ranks, or more processors"


def _gpus(facts: Facts, ranks: int, with_gpus: str) -> _Wrong:
    """Each rank has a GPU that goes with driver and MXNet, or no rank of any host has one.

    As ``runtime.devices`` assigns them. ``with_gpus`` is a host that has some, if there is one.
    """
    count, package = len(facts.gpus), facts.mxnet_package
    cuda = installed.cuda_of(package)
    if cuda is not None and "gpus" in facts.errors:
        what, _, remedy = facts.errors["gpus"].partition("; ")
        yield what, remedy or "look at nvidia-smi there"
    elif not count and (with_gpus or cuda is not None):
        why = f"but {with_gpus} does" if with_gpus else f"but its MXNet is {package}"
        remedy = "repair its driver (nvidia-smi), leave it out, or CUDA_VISIBLE_DEVICES= for all"
        yield f"it has no GPU that ranks would see, {why}", remedy
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
