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

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from runtime.errors import ConfigError

_log = logging.getLogger(__name__)


class Trace:
    """The file of one process, or nothing."""

    def __init__(self, folder: str, name: str) -> None:
        """Open the file.

        Args:
            folder: is made if it is missing; empty to write nothing.
            name: of the file, which no other process of the job has.

        Raises:
            ConfigError: the file cannot be written.
        """
        self._path = Path(folder, name)
        self._descriptor: Optional[int] = None
        if not folder:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Not buffered: servers are ended by a signal, which would take the last lines along.
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        except OSError as error:
            raise ConfigError(
                f"--trace {folder} cannot be written ({error.strerror}); give another folder, or "
                "leave it out"
            ) from None

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
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())
        except OSError as error:
            # A full disk must not end the job for a record that training does without.
            _log.warning("%s cannot be written (%s); it ends here", self._path, error.strerror)
            os.close(self._descriptor)
            self._descriptor = None
