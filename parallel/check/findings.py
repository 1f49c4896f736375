"""What is wrong, and what to do about it: pure functions of what the hosts say.

Each rule takes the survey and yields findings, one for a mistake and host. What differs between
hosts is compared with the first of them that answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable

from parallel.check.facts import Facts
from parallel.check.gpu_findings import cuda, gpus, is_for_gpus
from parallel.check.hosts import Finding, listed
from parallel.check.network_findings import interfaces, links, names, reachability
from parallel.check.survey import Survey
from runtime import installed

GIBIBYTE, MEBIBYTE = 1 << 30, 1 << 20
# Below these a run fails or is slow; what is usual is far above.
LEAST_MEMORY_PER_RANK = GIBIBYTE
LEAST_SHARED_MEMORY_PER_RANK = 32 * MEBIBYTE
LEAST_DISK = 2 * GIBIBYTE
LEAST_OPEN_FILES = 1024
OPEN_MPI_VERSIONS = ("3", "4")
"""Those that setup-utils/install-mpi.sh accepts."""


def findings(survey: Survey) -> list[Finding]:
    """Everything that is wrong, host by host in the order of the user."""
    rules = (
        *(versions, project, packages, names, interfaces, reachability, links),
        *(memory_and_disk, processors_and_limits, gpus, cuda),
    )
    found = [*survey.silent, *(one for rule in rules for one in rule(survey))]
    order = list(survey.slots)
    return sorted(found, key=lambda one: order.index(one.host))


def versions(survey: Survey) -> Iterator[Finding]:
    """Python, MXNet, Horovod and Open MPI are the same everywhere."""
    parts: dict[str, Callable[[Facts], str]] = {
        "Python": lambda facts: ".".join(facts.python.split(".")[:2]),
        "MXNet": lambda facts: f"{facts.mxnet_package} {facts.mxnet}" if facts.mxnet else "",
        "Horovod": lambda facts: facts.horovod or "",
        "Open MPI": lambda facts: facts.open_mpi or "",
    }
    for name, version in parts.items():
        # One that is missing is a finding of its own.
        known = {host: version(facts) for host, facts in survey.facts.items() if version(facts)}
        first = next(iter(known), None)
        for host, found in known.items():
            if first is not None and found != known[first]:
                yield Finding(
                    host,
                    f"{name} is {found}, but {known[first]} on {first}",
                    "remove .venv there and make env as on the other host",
                )


def project(survey: Survey) -> Iterator[Finding]:
    """All hosts have the same files of the project."""
    first = next(iter(survey.facts), None)
    for host, facts in survey.facts.items():
        if "files" in facts.errors:
            yield Finding(
                host,
                f"the files of the project cannot be read ({facts.errors['files']})",
                "copy the project there again",
            )
        assert first is not None
        others = survey.facts[first].files
        different = sorted(
            name
            for name in facts.files.keys() | others.keys()
            if facts.files.get(name) != others.get(name)
        )
        if different and facts.files and others:
            more = f" and {len(different) - 1} more" if len(different) > 1 else ""
            yield Finding(
                host,
                f"this project is not that of {first}: {different[0]}{more} differ"
                + ("" if more else "s"),
                "copy one of the two over the other, or update both to the same commit",
            )


def packages(survey: Survey) -> Iterator[Finding]:
    """Each host can import what a rank imports, and start it."""
    remedy = "make env there"
    for host, facts in survey.facts.items():
        if facts.mxnet_package == "unknown":
            yield Finding(host, "MXNet is not installed", remedy)
        elif "mxnet" in facts.errors:
            yield Finding(
                host,
                f"{facts.mxnet_package} does not load as it should ({facts.errors['mxnet']})",
                "docs/gpu.md says which libraries it needs"
                if installed.cuda_of(facts.mxnet_package)
                else "remove .venv there and make env",
            )
        lacks = [part for part in facts.horovod_lacks if part != "NCCL" or is_for_gpus(facts)]
        if facts.horovod is None:
            yield Finding(host, "Horovod is not installed", remedy)
        elif "horovod_lacks" in facts.errors:
            yield Finding(
                host,
                f"Horovod does not load ({facts.errors['horovod_lacks']})",
                "remove .venv there and make env",
            )
        elif lacks:
            yield Finding(
                host,
                f"Horovod is built without {', '.join(lacks)}",
                "remove .venv there and make env",
            )
        if "open_mpi" in facts.errors:
            yield Finding(host, facts.errors["open_mpi"], remedy)
        elif facts.open_mpi is not None and facts.open_mpi.split(".")[0] not in OPEN_MPI_VERSIONS:
            yield Finding(
                host,
                f"Open MPI {facts.open_mpi} starts ranks in another way",
                f"{remedy}, which brings version 4",
            )


def memory_and_disk(survey: Survey) -> Iterator[Finding]:
    """There is room for the ranks, and for their checkpoints."""
    for host, facts in survey.facts.items():
        ranks = survey.slots[host]
        if facts.memory < ranks * LEAST_MEMORY_PER_RANK:
            yield Finding(
                host,
                f"{_size(facts.memory)} of memory are free for {ranks} ranks",
                "end what uses it (top), or start fewer ranks there",
            )
        if ranks > 1 and facts.shared_memory < ranks * LEAST_SHARED_MEMORY_PER_RANK:
            yield Finding(
                host,
                f"{_size(facts.shared_memory)} are free in /dev/shm, where {ranks} ranks exchange",
                "remove old files there, or docker run --shm-size=1g",
            )
        if facts.disk is None:
            reason = facts.errors.get("disk", "unknown")
            yield Finding(
                host, f"--models-root cannot be used ({reason})", "give one that can be written"
            )
        elif facts.disk < LEAST_DISK:
            yield Finding(
                host,
                f"{_size(facts.disk)} are free on the disk of --models-root, for checkpoints",
                "remove old files, or give another --models-root",
            )


def _size(count: int) -> str:
    return f"{count / GIBIBYTE:.1f} GiB" if count >= GIBIBYTE else f"{count / MEBIBYTE:.0f} MiB"


def processors_and_limits(survey: Survey) -> Iterator[Finding]:
    """Ranks have processors of their own, and may open files and lock memory."""
    for host, facts in survey.facts.items():
        ranks = survey.slots[host]
        if ranks > facts.processors:
            yield Finding(
                host,
                f"{ranks} ranks would share {facts.processors} processors",
                f"give it no more than {host}:{facts.processors}, or more processors",
            )
        if facts.open_files is not None and facts.open_files < LEAST_OPEN_FILES:
            yield Finding(
                host,
                f"a process may open {facts.open_files} files (ulimit -n)",
                f"raise nofile to {LEAST_OPEN_FILES} or more in /etc/security/limits.conf",
            )
        if facts.infiniband and facts.locked_memory is not None:
            yield Finding(
                host,
                f"{_size(facts.locked_memory)} of memory can be locked (ulimit -l), too few for "
                f"{listed(facts.infiniband)}",
                "set memlock to unlimited in /etc/security/limits.conf",
            )
