"""The hosts side by side, as text of at most a hundred columns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Optional

from parallel.check.findings import GIBIBYTE
from parallel.check.survey import Survey
from runtime.installed import dotted

WIDTH = 100
_LABEL = 14
_NARROWEST, _WIDEST = 21, 40
_LABELS = (
    *("", "hostname", "address", "ranks", "Python", "MXNet", "Horovod", "Open MPI", "project"),
    *("GPUs", "memory free", "/dev/shm free", "disk free", "sends"),
)


def _column(survey: Survey, host: str) -> tuple[str, ...]:
    """The cells of a host, in the order of ``_LABELS``."""
    facts = survey.facts.get(host)
    if facts is None:
        return (host, *"?" * (len(_LABELS) - 1))
    # Where others reach it, and the interface there.
    seen = (survey.address_of(host, other) for other in survey.facts if other != host)
    address = next(filter(None, seen), facts.ssh_server)
    interfaces = [name for name, own in facts.interfaces.items() if own == address]
    package = "broken" if "mxnet" in facts.errors else facts.mxnet_package
    checksum = hashlib.sha256(repr(sorted(facts.files.items())).encode()).hexdigest()
    gpus = ", ".join(sorted({gpu.name for gpu in facts.gpus}))
    driver = f", CUDA {dotted(facts.cuda_of_driver)}" if facts.cuda_of_driver else ""
    # The slowest of all connections from it, and to which host.
    sent = [(one.bandwidth, one.receiver) for one in survey.pairs if one.sender == host]
    rate, receiver = min(((rate, name) for rate, name in sent if rate), default=(0.0, ""))
    return (
        host,
        facts.hostname,
        " ".join([address or "-", *interfaces[:1]]),
        f"{survey.slots[host]} on {facts.processors} processors",
        facts.python,
        "missing" if facts.mxnet is None else f"{facts.mxnet} {package}",
        facts.horovod or "missing",
        facts.open_mpi or "missing",
        checksum[:12],
        f"{len(facts.gpus)} {gpus}{driver}" if gpus else "none",
        _size(facts.memory),
        _size(facts.shared_memory),
        _size(facts.disk),
        f"{rate / 1e6:.0f} MB/s {receiver}" if rate else "-",
    )


def _size(count: Optional[int]) -> str:
    return "unusable" if count is None else f"{count / GIBIBYTE:.1f} GiB"


def table(survey: Survey) -> Iterator[str]:
    """The lines of the table: a column for each host, as many side by side as there is room."""
    hosts = list(survey.slots)
    fitting = max(1, (WIDTH - _LABEL) // max(_NARROWEST, 1 + max(map(len, hosts))))
    for start in range(0, len(hosts), fitting):
        if start:
            yield ""
        shown = hosts[start : start + fitting]
        width = min(_WIDEST, (WIDTH - _LABEL) // len(shown))
        columns = (_column(survey, host) for host in shown)
        for label, *cells in zip(_LABELS, *columns):
            yield _line(label, cells, width)


def _line(label: str, cells: list[str], width: int) -> str:
    cut = [cell if len(cell) < width else f"{cell[: width - 2]}…" for cell in cells]
    return f"{label:{_LABEL}}{''.join(f'{cell:{width}}' for cell in cut)}".rstrip()
