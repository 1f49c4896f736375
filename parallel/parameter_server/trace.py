"""A record of every push and pull, from which the staleness of each push can be computed again.

A wrong staleness makes training a little worse, and nothing fails. So a job can record what happens
(``parallel.launch --trace FOLDER``), and a test replays the record (``tests/soak``). Each server,
and each worker that pushes, writes a file. Nothing is written by default.

A server writes a line for each push that it applies, with the version that the bucket had before:
``bucket pusher sent_version version staleness``. A worker writes ``pusher NUMBER KEY...``, its
number among the pushers and its buckets, and then in turn ``pull VERSION...``, a version for each
bucket, and ``push``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Optional

from runtime.errors import ConfigError
from runtime.files import open_kept


class Trace:
    """The file of one process, if there is a folder for it."""

    def __init__(self, folder: str, name: str) -> None:
        """Open the file ``name``, another for each process; without a folder nothing is written.

        Raises:
            ConfigError: the file cannot be written.
        """
        self._descriptor: Optional[int] = None
        if not folder:
            return
        path = Path(folder, name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Not buffered: servers end by a signal, which would lose the last lines.
            path.unlink(missing_ok=True)
            self._descriptor = open_kept(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            raise ConfigError(
                f"--trace {folder} cannot be written ({error.strerror}); give another folder, or "
                "leave it out"
            ) from None

    def write(self, *words: object) -> None:
        """Write a line; a full disk loses it, and does not end the job."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.write(self._descriptor, (" ".join(map(str, words)) + "\n").encode())
