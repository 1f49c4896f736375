"""Lists of hosts as launchers take them, the one reader for all of them, and hosts' addresses.

A file has a host on each line, ``ip1 slots=8`` (Open MPI, Horovod) or ``ip1:8``; an option has them
in one word, ``ip1:8,ip2:8``. Editors of other systems add a byte order mark, line ends of Windows,
tabs and spaces; people add comments and empty lines. All of that is read here. What no launcher can
use (an IPv6 address, a user's name) is refused here in one line: Open MPI answers such a list with
pages of text, and Horovod with a traceback. Batch systems have lists of their own: Slurm grants
tasks to a job; PBS, Grid Engine and LSF grant hosts.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Optional

import psutil

from runtime import environment
from runtime.errors import ConfigError, DataError, did_you_mean
from runtime.files import read_lines, read_text

SLOTS, PORT = "slots", "port"
"""Meanings of the number after a colon: ranks, or the port of the ssh server (MXNet)."""
_LARGEST = {SLOTS: 9999, PORT: 65535}
# Larger files are something else.
_LARGEST_FILE = 1 << 20
_SHOWN = 80
_USABLE = (
    'is not a host; write its name or IPv4 address alone (a user in ~/.ssh/config), as in "ip1", '
    '"ip1:8" or in a file "ip1 slots=8", with a number from 1'
)
# A name never begins like an option: ssh and mpirun would take it for one.
_ENTRY = re.compile(
    r"(?P<host>[A-Za-z0-9_][A-Za-z0-9._-]{0,252})(:(?P<colon>[0-9]{1,5}))?"
    r"(\s+(max[_-]slots=[0-9]{1,5}|slots=(?P<slots>[0-9]{1,5})))*"
)
# Variables of PBS, Grid Engine and LSF, which Open MPI's wheels do not know: a file that names a
# host first on each line.
_HOST_FILES = ("PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE")


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


def read_file(path: Path, *, colon: str = SLOTS) -> tuple[ListedHost, ...]:
    """Read a file with one host on each line.

    Args:
        path: the file.
        colon: the meaning of a number after a colon, ``SLOTS`` or ``PORT``.

    Raises:
        DataError: it cannot be read, has no host, or a line (which is named) cannot be used.
    """
    found = []
    lines = read_lines(path, "a list of hosts, a line for each", limit=_LARGEST_FILE)
    for number, line in enumerate(lines, 1):
        if text := re.sub(r"\s*=\s*", "=", line.partition("#")[0]).strip():
            entry = _entry(number, text, colon)
            if entry is None:
                raise DataError(f"{path}, line {number}: {line.strip()[:_SHOWN]!r} {_USABLE}")
            found.append(entry)
    if not found:
        raise DataError(f'{path} has no host; add a line for each, as in "ip1 slots=8"')
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
    found = []
    for number, word in enumerate(text.strip().removesuffix(",").split(","), 1):
        entry = _entry(number, word.strip(), SLOTS)
        if entry is None:
            raise ConfigError(
                f"{name} {text[:_SHOWN]!r}, host {number}: {word.strip()[:_SHOWN]!r} {_USABLE}"
            )
        found.append(entry)
    return tuple(found)


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


def _entry(number: int, text: str, colon: str) -> Optional[ListedHost]:
    """Read a line, or what is between two commas; None if it is no host that can be used."""
    match = _ENTRY.fullmatch(text)
    if match is None or (colon == SLOTS and match["colon"] and match["slots"]):
        return None
    given = [(SLOTS, match["slots"]), (colon, match["colon"])]
    numbers = {key: int(text) for key, text in given if text}
    if not all(1 <= value <= _LARGEST[key] for key, value in numbers.items()):
        return None
    return ListedHost(number, match["host"], numbers.get(SLOTS), numbers.get(PORT))


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


def address_on(interface: str, option: str = "-i") -> str:
    """Return this machine's IPv4 address on an interface: parameter servers support no other.

    Args:
        interface: its name, the same on all machines of the job.
        option: by which the user has given it.

    Raises:
        ConfigError: there is no such interface, or it has no IPv4 address.
    """
    known = psutil.net_if_addrs()
    if interface not in known:
        raise ConfigError(
            f"{option} {interface}: no such network interface{did_you_mean(interface, known)}; "
            f"this machine has {', '.join(known)}"
        )
    found = [one.address for one in known[interface] if one.family == socket.AF_INET]
    if not found:
        raise ConfigError(f"{option} {interface} has no IPv4 address; choose another interface")
    return str(found[0])


def resolve(host: str) -> str:
    """Return the IPv4 address of a host.

    Raises:
        ConfigError: it has none.
    """
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise ConfigError(f"host {host} has no known address ({error}); correct -H") from None


def free_port(address: str) -> int:
    """Return a port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def is_own_name(name: str) -> bool:
    """True if a name or address stands for this machine; ssh may know names that are unknown here.

    A machine's own name need not be known to its resolver.
    """
    try:
        # The address of another machine cannot be bound.
        return name == socket.gethostname() or free_port(resolve(name)) > 0
    except (ConfigError, OSError):
        return False
