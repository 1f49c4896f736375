"""The hosts side by side, as text of at most a hundred columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Callable, Optional

from parallel.check.facts import Facts
from parallel.check.findings import GIBIBYTE
from parallel.check.survey import Survey
from runtime.installed import dotted

WIDTH = 100
_LABEL = 14
_NARROWEST, _WIDEST = 21, 40


def _address(survey: Survey, host: str, facts: Facts) -> str:
    """Where others reach it, and the interface there."""
    seen = (survey.address_of(host, other) for other in survey.facts if other != host)
    address = next(filter(None, seen), facts.ssh_server)
    names = [name for name, own in facts.interfaces.items() if own == address]
    return " ".join([address or "-", *names[:1]])


def _mxnet(facts: Facts) -> str:
    if facts.mxnet is None:
        return "missing"
    return f"{facts.mxnet} {'broken' if 'mxnet' in facts.errors else facts.mxnet_package}"


def _project(facts: Facts) -> str:
    """One checksum of all files."""
    return hashlib.sha256(repr(sorted(facts.files.items())).encode()).hexdigest()[:12]


def _gpus(facts: Facts) -> str:
    names = ", ".join(sorted({gpu.name for gpu in facts.gpus}))
    driver = f", CUDA {dotted(facts.cuda_of_driver)}" if facts.cuda_of_driver else ""
    return f"{len(facts.gpus)} {names}{driver}" if names else "none"


def _size(count: Optional[int]) -> str:
    return "unusable" if count is None else f"{count / GIBIBYTE:.1f} GiB"


def _sends(survey: Survey, host: str, _: Facts) -> str:
    """The slowest of all connections from this host, and to which."""
    pairs = [(one.bandwidth, one.receiver) for one in survey.pairs if one.sender == host]
    rate, receiver = min(((rate, name) for rate, name in pairs if rate), default=(0.0, ""))
    return f"{rate / 1e6:.0f} MB/s {receiver}" if rate else "-"


_ROWS: Mapping[str, Callable[[Survey, str, Facts], str]] = {
    "hostname": lambda _, __, facts: facts.hostname,
    "address": _address,
    "ranks": lambda survey, host, facts: f"{survey.slots[host]} on {facts.processors} processors",
    "Python": lambda _, __, facts: facts.python,
    "MXNet": lambda _, __, facts: _mxnet(facts),
    "Horovod": lambda _, __, facts: facts.horovod or "missing",
    "Open MPI": lambda _, __, facts: facts.open_mpi or "missing",
    "project": lambda _, __, facts: _project(facts),
    "GPUs": lambda _, __, facts: _gpus(facts),
    "memory free": lambda _, __, facts: _size(facts.memory),
    "/dev/shm free": lambda _, __, facts: _size(facts.shared_memory),
    "disk free": lambda _, __, facts: _size(facts.disk),
    "sends": _sends,
}


def table(survey: Survey) -> Iterator[str]:
    """The lines of the table: a column for each host, as many side by side as there is room."""
    hosts = list(survey.slots)
    fitting = max(1, (WIDTH - _LABEL) // max(_NARROWEST, 1 + max(map(len, hosts))))
    for start in range(0, len(hosts), fitting):
        if start:
            yield ""
        shown = hosts[start : start + fitting]
        width = min(_WIDEST, (WIDTH - _LABEL) // len(shown))
        yield _line("", shown, width)
        for label, row in _ROWS.items():
            facts = [survey.facts.get(host) for host in shown]
            cells = [row(survey, host, one) if one else "?" for host, one in zip(shown, facts)]
            yield _line(label, cells, width)


def _line(label: str, cells: list[str], width: int) -> str:
    cut = [cell if len(cell) < width else f"{cell[: width - 2]}…" for cell in cells]
    return f"{label:{_LABEL}}{''.join(f'{cell:{width}}' for cell in cut)}".rstrip()
