"""The file ``hosts``: the address of each worker's slot, one a line, worker 0 first.

A machine with two slots stands on two lines. The file has as many lines as there are workers:
the same file with another number of workers would mean other groups and other shares.
"""

from __future__ import annotations

import re
from pathlib import Path

from parallel.launch import lines
from runtime.errors import DataError

_CONTENT = "one address, of a worker's slot"
# Not "-" first: ssh would take it for an option. No colon: it separates the slot in groups.
_ADDRESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def read(path: Path, workers: int) -> tuple[str, ...]:
    """Read the address of each worker.

    Args:
        path: the file.
        workers: how many the job has.

    Raises:
        DataError: with the file and the line: not one address on it, or too few or many lines.
    """
    addresses = []
    for number, words in enumerate(lines.read(path, _CONTENT), 1):
        if len(words) > 1:
            raise DataError(
                f"{lines.location(path, number)}: {' '.join(words)!r} is more than one address; a "
                "machine with several slots stands on as many lines"
            )
        if not _ADDRESS.fullmatch(words[0]):
            raise DataError(
                f"{lines.location(path, number)}: {words[0]!r} is no address; give a name or an "
                "IPv4 address"
            )
        addresses.append(words[0])
    if len(addresses) != workers:
        raise DataError(
            f"{path} has {len(addresses)} lines, but there are {workers} workers; give it one line "
            f"for each, or -n {len(addresses)}"
        )
    return tuple(addresses)
