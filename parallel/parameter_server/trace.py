"""A record of every push and pull, from which the staleness of each push can be computed again.

The servers' arithmetic with versions cannot be seen from outside: a wrong staleness makes training
a little worse and nothing fails. So a job can be told to write down what happened
(``parallel.launch --trace FOLDER``), and a test replays it (``tests/soak``). Servers and those
workers that push write a file each. Nothing is written by default.

A server's line, in the order in which pushes are applied, with the version that the bucket had
before: ``bucket pusher sent_version version staleness``. A worker's lines: ``pusher NUMBER KEY...``
is its number among the pushers and its buckets; then come in turn ``pull VERSION...``, one for each
bucket, and ``push``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Optional


class Trace:
    """The file of one process, or nothing."""

    def __init__(self, folder: str, name: str) -> None:
        """Open the file.

        Args:
            folder: is made if it is missing; empty to write nothing.
            name: of the file, which no other process of the job has.
        """
        self._file: Optional[IO[str]] = None
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            # Each line is in the file when its push is answered: servers are ended by a signal.
            self._file = Path(folder, name).open("w", buffering=1, encoding="ascii")

    def applied(self, *numbers: int) -> None:
        """A server has applied a push: bucket, pusher, sent version, version, staleness."""
        self._write(numbers)

    def begin(self, pusher: int, keys: Sequence[int]) -> None:
        """A worker pushes as this pusher, and these are its buckets."""
        self._write(("pusher", pusher, *keys))

    def pulled(self, versions: Sequence[int]) -> None:
        """A worker has pulled these versions, one for each bucket."""
        self._write(("pull", *versions))

    def pushed(self) -> None:
        """A worker begins to push every bucket."""
        self._write(("push",))

    def _write(self, words: Sequence[object]) -> None:
        if self._file is not None:
            self._file.write(" ".join(map(str, words)) + "\n")
