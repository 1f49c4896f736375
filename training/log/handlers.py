"""Where the lines of a log go: the file of each rank, and the screen with its progress bar.

Neither ends a run when it cannot be written any more (its disk is full, its terminal or reader is
gone): a warning is printed, and the log continues on the other one.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path

from tqdm import tqdm
from typing_extensions import override

from runtime import environment
from runtime.errors import discard, one_line, printable
from runtime.files import APPENDING, make_folder, open_kept

OFF_SCREEN = {"off_screen": True}
"""``extra`` of a record that goes to the file only."""
_BAR_FORMAT = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}, {rate_inv_fmt}]{postfix}"

_log = logging.getLogger(__name__)


class LineFormatter(logging.Formatter):
    """Formats a message as one line, whatever a name in it holds; a traceback has several."""

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))

    @override
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class FileHandler(logging.FileHandler):
    """Writes the log file of a rank."""

    _has_failed = False

    def __init__(self, models_root: Path, rank: int) -> None:
        """Open the file to append to it; ``OSError`` if it cannot be written."""
        folder = models_root / "logs"
        make_folder(folder)
        # Names of files may hold bytes that are no characters.
        path = folder / f"rank-{rank:04d}.log"
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    @override
    def _open(self) -> TextIOWrapper:
        return open(
            open_kept(self.baseFilename, APPENDING), "a", encoding=self.encoding, errors=self.errors
        )

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._has_failed:
            self._has_failed = True
            what = f"{self.baseFilename} cannot be written ({error.strerror})"
            # The screen may be a file on the same disk.
            with suppress(OSError):
                print(f"warning: {what}; lines are missing from it", file=sys.stderr)

    @override
    def close(self) -> None:
        # There may be no room for what is still buffered.
        with suppress(OSError):
            super().close()


class ScreenHandler(logging.Handler):
    """Prints the lines of rank 0 and the warnings of the others on the standard output.

    On a terminal, rank 0 has a progress bar below the lines.

    Attributes:
        bar: the progress bar, which is disabled if there is none.
    """

    def __init__(self, rank: int) -> None:
        super().__init__(logging.INFO if rank == 0 else logging.WARNING)
        self._stream = sys.stdout
        may_be_real = environment.allows_progress_bar()
        self._wants_bar = rank == 0 and may_be_real and self._stream.isatty()
        self.bar = tqdm(disable=True)

    def open_bar(self, total_updates: int, update: int) -> None:
        """Show a bar from ``update`` to ``total_updates``, if this is a terminal of rank 0."""
        self.bar.close()
        # If the terminal goes away, tqdm disables the bar.
        self.bar = tqdm(
            total=total_updates,
            initial=update,
            file=self._stream,
            bar_format=_BAR_FORMAT,
            dynamic_ncols=True,
            disable=not self._wants_bar,
        )

    @override
    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "off_screen", False):
            return
        try:
            # tqdm removes an open bar, writes, and draws the bar again.
            tqdm.write(self.format(record), file=self._stream)
            self._stream.flush()
        except OSError as error:
            discard(self._stream)
            text = f"the screen cannot be written ({error.strerror}); the log continues in its file"
            _log.warning(text, extra=OFF_SCREEN)
            with suppress(OSError):
                print(f"warning: {text}", file=sys.stderr)
