"""The hosts side by side, as text of at most a hundred columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Callable, Optional

from parallel.check.facts import Facts
from parallel.check.findings import GIBIBYTE
from parallel.check.hosts import Finding
from parallel.check.survey import Survey
from runtime.installed import dotted

WIDTH = 100
_LABEL = 14
_NARROWEST = 21

Row = Callable[[Survey, str, Facts], str]


def _address(survey: Survey, host: str, facts: Facts) -> str:
    """Where others reach it."""
    if survey.nic is not None:
        address: Optional[str] = facts.interfaces.get(survey.nic)
    else:
        seen = (found.ssh_client for found in survey.facts.values() if found.ssh_client)
        address = facts.ssh_server or next(seen, None)
    names = [name for name, own in facts.interfaces.items() if own == address]
    return " ".join([address or "-", *names[:1]])


def _mxnet(_: Survey, __: str, facts: Facts) -> str:
    if facts.mxnet is None:
        return "missing"
    return f"{facts.mxnet} {'broken' if 'mxnet' in facts.errors else facts.mxnet_package}"


def _project(_: Survey, __: str, facts: Facts) -> str:
    """One checksum of all files."""
    return hashlib.sha256(repr(sorted(facts.files.items())).encode()).hexdigest()[:12]


def _gpus(_: Survey, __: str, facts: Facts) -> str:
    names = sorted({gpu.name for gpu in facts.gpus})
    return f"{len(facts.gpus)} {', '.join(names)}" if names else "none"


def _driver(_: Survey, __: str, facts: Facts) -> str:
    if facts.cuda_of_driver is None:
        return "none"
    return f"{facts.driver or ''} CUDA {dotted(facts.cuda_of_driver)}".strip()


def _size(count: Optional[int]) -> str:
    return "unusable" if count is None else f"{count / GIBIBYTE:.1f} GiB"


def _limits(_: Survey, __: str, facts: Facts) -> str:
    locked = facts.locked_memory
    shown = "unlimited" if locked is None else f"{locked / 1024:.0f} KiB"
    return f"{'unlimited' if facts.open_files is None else facts.open_files}, {shown}"


def _links(survey: Survey, host: str) -> Iterator[tuple[float, str]]:
    for pair in survey.pairs:
        if pair.sender == host and pair.link:
            yield pair.link.bandwidth, pair.receiver


def _bandwidth(survey: Survey, host: str, _: Facts) -> str:
    slowest = min(_links(survey, host), default=None)
    return f"{slowest[0] / 1e6:.0f} MB/s {slowest[1]}" if slowest else "-"


_ROWS: Mapping[str, Row] = {
    "hostname": lambda _, __, facts: facts.hostname,
    "address": _address,
    "ranks": lambda survey, host, facts: f"{survey.slots[host]} on {facts.processors} processors",
    "Python": lambda _, __, facts: facts.python,
    "MXNet": _mxnet,
    "Horovod": lambda _, __, facts: facts.horovod or "missing",
    "Open MPI": lambda _, __, facts: facts.open_mpi or "missing",
    "project": _project,
    "GPUs": _gpus,
    "driver": _driver,
    "memory free": lambda _, __, facts: _size(facts.memory),
    "/dev/shm free": lambda _, __, facts: _size(facts.shared_memory),
    "disk free": lambda _, __, facts: _size(facts.disk),
    "ulimit -n, -l": _limits,
    "sends": _bandwidth,
}
"""A line for each; the last is the worst of all connections from this host, and to which."""


def table(survey: Survey) -> Iterator[str]:
    """The lines of the table: a column for each host, as many side by side as there is room."""
    hosts = list(survey.slots)
    fitting = max(1, (WIDTH - _LABEL) // max(_NARROWEST, 1 + max(map(len, hosts))))
    for start in range(0, len(hosts), fitting):
        if start:
            yield ""
        shown = hosts[start : start + fitting]
        width = min(40, (WIDTH - _LABEL) // len(shown))
        yield _line("", shown, width)
        for label, row in _ROWS.items():
            cells = [
                row(survey, host, survey.facts[host]) if host in survey.facts else "?"
                for host in shown
            ]
            yield _line(label, cells, width)


def _line(label: str, cells: list[str], width: int) -> str:
    room = width - 1
    cut = [cell if len(cell) <= room else f"{cell[: room - 1]}…" for cell in cells]
    return f"{label:{_LABEL}}{''.join(f'{cell:{width}}' for cell in cut)}".rstrip()


def verdict(survey: Survey, found: list[Finding]) -> Iterator[str]:
    """The lines below the table."""
    for one in found:
        yield f"wrong  {one}"
    if found:
        yield f"{len(found)} wrong"
    else:
        yield "healthy: nothing is wrong"
