"""Lists of hosts as launchers take them: the one reader for all of them.

A file has a host on each line, ``ip1 slots=8`` (Open MPI, Horovod) or ``ip1:8``; an option has them
in one word, ``ip1:8,ip2:8``. Editors of other systems add a byte order mark, line ends of Windows,
tabs and spaces; people add comments and empty lines. All of that is read here. What no launcher can
use (an IPv6 address, a user's name) is refused here in one line: Open MPI answers such a list with
pages of text, and Horovod with a traceback. Batch systems have lists of their own: Slurm grants
tasks to a job; PBS, Grid Engine and LSF grant hosts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Optional

from runtime import environment
from runtime.errors import ConfigError, DataError
from runtime.files import read_lines, read_text

SLOTS, PORT = "slots", "port"
"""Meanings of the number after a colon: ranks, or the port of the ssh server (MXNet)."""
_LARGEST = {SLOTS: 9999, PORT: 65535}
# Larger files are something else.
_LARGEST_FILE = 1 << 20
_SHOWN = 80
_IN_FILES, _IN_LISTS = '"ip1 slots=8"', '"ip1:8,ip2:8"'
# Never the beginning of an option: ssh and mpirun would take it for one.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
# Variables of PBS, Grid Engine and LSF, which Open MPI's wheels do not know: a file that names a
# host first on each line.
_HOST_FILES = ("PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE")
_SETTING = re.compile(r"(slots|max[_-]slots)=(\S*)")


class ListedHost(NamedTuple):
    """An entry of a list; a host may have several."""

    line: int
    """Line of the file, or number of the entry in a word; both counted from 1."""
    host: str
    """Name or IPv4 address."""
    slots: Optional[int] = None
    """Number of ranks, if the entry has one."""
    port: Optional[int] = None
    """Port of the ssh server, if the entry has one."""


class _Unusable(Exception):
    """The reason why an entry cannot be used, and the remedy."""


def read_file(path: Path, *, colon: str = SLOTS) -> tuple[ListedHost, ...]:
    """Read a file with one host on each line.

    Args:
        path: the file.
        colon: the meaning of a number after a colon, ``SLOTS`` or ``PORT``.

    Raises:
        DataError: it cannot be read, has no host, or a line (which is named) cannot be used.
    """
    found = []
    kind = f"a list of hosts, a line for each as in {_IN_FILES}"
    for number, line in enumerate(read_lines(path, kind, limit=_LARGEST_FILE), 1):
        if words := re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split():
            try:
                found.append(_entry(number, words, colon))
            except _Unusable as reason:
                shown = line.strip()[:_SHOWN]
                raise DataError(f"{path}, line {number}: {shown!r} {reason}") from None
    if not found:
        raise DataError(f"{path} has no host; add a line for each, as in {_IN_FILES}")
    return tuple(found)


def read_list(text: str, *, name: str = "-H") -> tuple[ListedHost, ...]:
    """Read hosts from one word, separated by commas, each with its slots after a colon.

    One comma may follow the last.

    Args:
        text: the word.
        name: what the user has given it to, an option or a variable.

    Raises:
        ConfigError: an entry cannot be used, or there is none.
    """
    entries = text.strip().removesuffix(",").split(",")
    found = []
    for number, entry in enumerate(entries, 1):
        try:
            found.append(_entry(number, entry.split(), SLOTS))
        except _Unusable as reason:
            shown = text[:_SHOWN]
            which = f", host {number}: {entry.strip()[:_SHOWN]!r}" if len(entries) > 1 else ""
            raise ConfigError(f"{name} {shown!r}{which} {reason}") from None
    return tuple(found)


def is_name(text: str) -> bool:
    """True if a text is the name or IPv4 address of a host."""
    return _NAME.fullmatch(text) is not None


def slots_by_host(
    entries: Iterable[ListedHost], is_own: Callable[[str], bool] = lambda _: False
) -> dict[str, Optional[int]]:
    """Add up the slots of each host, in the order of the list; None where a list has none.

    Args:
        entries: of a list.
        is_own: true for the names of this host: ``localhost``, ``127.0.0.1`` and its own name are
            one host, by the first of them.
    """
    slots: dict[str, Optional[int]] = {}
    own: Optional[str] = None
    for entry in entries:
        host = entry.host
        if is_own(host):
            own = host = own or host
        if host in slots:
            # Each entry without a number is one slot, as for Open MPI.
            slots[host] = (slots[host] or 1) + (entry.slots or 1)
        else:
            slots[host] = entry.slots
    return slots


def _entry(number: int, words: list[str], colon: str) -> ListedHost:
    """Read the words of a line, or of what is between two commas."""
    if not words:
        raise _Unusable(f"is empty; write hosts as in {_IN_LISTS}")
    host, separator, count = words[0].partition(":")
    if "@" in host:
        raise _Unusable("names a user; write the host alone, and the user in ~/.ssh/config")
    if host.startswith("[") or ":" in count:
        raise _Unusable(
            "is not a name or an IPv4 address; IPv6 does not work between ranks: give a name or an "
            "IPv4 address"
        )
    settings = [_SETTING.fullmatch(word) for word in words[1:]]
    if not is_name(host) or None in settings:
        raise _Unusable(
            f"is not a host; write a line as in {_IN_FILES}, or a list as in {_IN_LISTS}"
        )
    given = [(colon, count)] if separator else []
    given += [(found[1].replace("-", "_"), found[2]) for found in settings if found]
    numbers = {key: _number(text, key) for key, text in given}
    if len(numbers) < len(given):
        raise _Unusable("has two numbers of slots; give one")
    return ListedHost(number, host, numbers.get(SLOTS), numbers.get(PORT))


def _number(text: str, key: str) -> int:
    largest = _LARGEST.get(key, _LARGEST[SLOTS])
    if re.fullmatch(r"[0-9]{1,5}", text) and 1 <= int(text) <= largest:
        return int(text)
    raise _Unusable(f"has {text[:_SHOWN]!r} for {key}; give a number from 1 to {largest}")


def tasks_of_slurm() -> int:
    """Return the tasks of Slurm's allocation, which Open MPI takes for its slots; 0 without one."""
    # Open MPI takes no allocation for one without this variable.
    variables = environment.variables()
    if "SLURM_JOBID" not in variables:
        return 0
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", variables.get("SLURM_TASKS_PER_NODE", ""))
    return sum(int(tasks) * int(nodes or 1) for tasks, nodes in counts)


def refuse_unread_hosts(is_own: Callable[[str], bool]) -> None:
    """Refuse to start all ranks on this host where another batch system has given more.

    Args:
        is_own: whether a name is one of this host.

    Raises:
        ConfigError: with what to type.
    """
    variables = environment.variables()
    for variable in _HOST_FILES:
        # Without the variable, or without its file, there is no such allocation.
        with suppress(OSError):
            text = read_text(Path(variables.get(variable, "")))
            hosts = [line.split()[0] for line in text.splitlines() if line.strip()]
            other = next((host for host in hosts if not is_own(host)), None)
            if other is not None:
                raise ConfigError(
                    f"{variable} names other hosts, such as {other[:80]}, but this Open MPI does "
                    "not read it; give the hosts, as in mpirun -H a:8,b:8 or HOSTS=a:8,b:8 bash "
                    "run.sh, or -H localhost:8 for this one alone"
                )
