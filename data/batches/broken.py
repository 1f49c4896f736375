"""Images that cannot be read: skipped, each named once, and limited in number."""

from __future__ import annotations

import logging
import threading

from data.records.recordio import BrokenRecordError
from runtime.errors import DataError

_log = logging.getLogger("data")


class BrokenImages:
    """The images of a set that this process has found broken; threads share it.

    Attributes:
        found: their indices.
    """

    def __init__(self, limit: int, images: int) -> None:
        """Start with none.

        Args:
            limit: the number that is skipped; one more is an error.
            images: the number of images in the set, at least one of which has to be readable.
        """
        self.found: set[int] = set()
        self._limit, self._images = limit, images
        self._lock = threading.Lock()

    def add(self, index: int, error: BrokenRecordError) -> None:
        """Count a broken image; the first time, its name goes to the log.

        Raises:
            DataError: there are more than the limit, or all of the set's images are broken.
        """
        with self._lock:
            if index not in self.found:
                _log.warning("skipped a broken record: %s", error)
            self.found.add(index)
        # The search for a readable image has to end, too.
        if len(self.found) >= self._images:
            raise DataError(
                f"{len(self.found)} broken records, which are all of the set; the last is {error}"
            )
        if len(self.found) > self._limit:
            raise DataError(
                f"{len(self.found)} broken records, more than the {self._limit} of "
                f"--max-bad-records; the last is {error}"
            )
