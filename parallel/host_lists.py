"""Lists of hosts as launchers take them: the one reader for all of them.

A file has a host on each line, ``ip1 slots=8`` (Open MPI, Horovod) or ``ip1:8``; an option has them
in one word, ``ip1:8,ip2:8``. Editors of other systems add a byte order mark, line ends of Windows,
tabs and spaces; people add comments and empty lines. All of that is read here. What no launcher can
use (an IPv6 address, a user's name) is refused here in one line: Open MPI answers such a list with
pages of text, and Horovod with a traceback.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Optional

from runtime.errors import ConfigError, DataError
from runtime.files import read_lines

SLOTS, PORT = "slots", "port"
"""Meanings of the number after a colon: ranks, or the port of the ssh server (MXNet)."""
_LARGEST = {SLOTS: 9999, PORT: 65535}
# Larger files are something else.
_LARGEST_FILE = 1 << 20
_SHOWN = 80
_IN_FILES, _IN_LISTS = '"ip1 slots=8"', '"ip1:8,ip2:8"'
# Never the beginning of an option: ssh and mpirun would take it for one.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,252}")
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
    name, *settings = words
    host, numbers = _host(name, colon)
    for word in settings:
        found = _SETTING.fullmatch(word)
        if found is None:
            raise _Unusable(
                f"is not a host: {word[:_SHOWN]!r} is not understood; write a line as in "
                f"{_IN_FILES}"
            )
        key = found[1].replace("-", "_")
        if key in numbers:
            raise _Unusable(f"has two numbers of {key}; give one")
        numbers[key] = _number(found[2], key, _LARGEST[SLOTS])
    slots, most = numbers.get(SLOTS), numbers.get("max_slots")
    if slots is not None and most is not None and most < slots:
        raise _Unusable(f"has more slots than max_slots={most}; correct one of them")
    return ListedHost(number, host, slots, numbers.get(PORT))


def _host(word: str, colon: str) -> tuple[str, dict[str, int]]:
    """Read a name or address, with the number after a colon under its meaning."""
    if "@" in word:
        raise _Unusable("names a user; write the host alone, and the user in ~/.ssh/config")
    if word.startswith("[") or word.count(":") > 1:
        raise _Unusable(
            "is not a name or an IPv4 address; IPv6 does not work between ranks: give a name or an "
            "IPv4 address"
        )
    host, separator, number = word.partition(":")
    if not is_name(host):
        raise _Unusable(
            f"is not a host; write a line as in {_IN_FILES}, or a list as in {_IN_LISTS}"
        )
    return host, {colon: _number(number, colon, _LARGEST[colon])} if separator else {}


def _number(text: str, key: str, largest: int) -> int:
    if re.fullmatch(r"[0-9]{1,5}", text) and 1 <= int(text) <= largest:
        return int(text)
    raise _Unusable(f"has {text[:_SHOWN]!r} for {key}; give a number from 1 to {largest}")
