"""Errors that are the user's to mend, and how a program reports them.

A wrong option or a broken file is no reason for a traceback, least of all for one per rank. Such
mistakes are raised as ``ConfigError`` or ``DataError`` with a one-line message that names the
value, the reason and the remedy; ``run_program`` prints the line and ends the process with status
2, even while other ranks wait for this one in a collective operation. A standard output that takes
nothing any more (a full disk, a reader that is gone) is such a mistake, too.
"""

from __future__ import annotations

import difflib
import errno
import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, BinaryIO, NoReturn, TextIO, cast

USER_ERROR_STATUS = 2
CLOSED_PIPE_STATUS = 128 + signal.SIGPIPE
"""Of a program whose reader has gone, as in ``| head``: what a shell reports for one that the
signal ended."""
_CRASH_STATUS = 1
_RANK_NAMES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "GROUPING_WORKER")
_LAUNCHER_GRACE_SECONDS = 10.0


class UserError(Exception):
    """A mistake that the user can mend; the message is one line with the remedy."""


class ConfigError(UserError):
    """A wrong option or combination of options: the same on every rank."""


class DataError(UserError):
    """A missing, broken or contradictory file: possibly on one rank only."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the closest choice, or ``""`` if none is close."""
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def launcher_number(names: Iterable[str], default: int) -> int:
    """Return the number that a launcher left in the first of some variables that is set.

    Args:
        names: the variables to look at, in order.
        default: the answer for a process that no launcher started.
    """
    return next((int(os.environ[name]) for name in names if name in os.environ), default)


def is_launched() -> bool:
    """Whether ``horovodrun``, ``mpirun`` or ``parallel.launch`` started this process."""
    return any(name in os.environ for name in _RANK_NAMES)


def run_program(main: Callable[[], int | None]) -> NoReturn:
    """Run a program and end the process with its exit status.

    A ``UserError`` is printed as one line and gives status 2. Any other exception keeps its
    traceback and gives status 1. Neither runs exit handlers: Horovod's would wait for ranks that
    in turn wait for this one. Since a launcher ends all ranks as soon as the first has failed, a
    rank other than 0 leaves a ``ConfigError`` to rank 0 and speaks up only if it is still alive
    some seconds later, when rank 0 evidently does not have the same error. So does a rank whose
    collective fails: the rank that is gone has failed first, and its status is the job's.

    A standard output that cannot be written is one line and status 2; a pipe whose reader has gone
    is status 141 without a word. Characters that it has no code for are written as escapes.
    """
    _open_outputs()
    try:
        status = main() or 0
        sys.stdout.flush()
    except ConfigError as error:
        if launcher_number(_RANK_NAMES, default=0) != 0:
            time.sleep(_LAUNCHER_GRACE_SECONDS)
        _end(str(error), USER_ERROR_STATUS)
    except UserError as error:
        _end(str(error), USER_ERROR_STATUS)
    except _OutputError as error:
        _end_without_output(error)
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        if is_launched() and _comes_from_elsewhere(error):
            time.sleep(_LAUNCHER_GRACE_SECONDS)
        _exit_now(_CRASH_STATUS)
    sys.exit(status)


def _comes_from_elsewhere(error: Exception) -> bool:
    """Whether a rank fails only because another one is gone, whose status shall be the job's."""
    return "horovod" in f"{type(error).__name__} {error}".lower()


def discard(stream: TextIO) -> None:
    """Let everything that is still written to a stream vanish, because it has failed for good."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
        stream.flush()


class _OutputError(OSError):
    """The standard output cannot be written."""


class _StandardOutput(io.FileIO):
    """Tells its errors from those of other files."""

    def write(self, data: Any) -> int:
        """Write as ``io.FileIO`` does."""
        try:
            return super().write(data)
        except OSError as error:
            raise _OutputError(error.errno, error.strerror) from None


def _open_outputs() -> None:
    """Let both outputs take any text; one that was closed by the caller takes it to nowhere."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")
    elif isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.flush()
        is_unbuffered = sys.stdout.write_through
        raw = _StandardOutput(sys.stdout.fileno(), "wb", closefd=False)
        sys.stdout = io.TextIOWrapper(
            cast(BinaryIO, raw) if is_unbuffered else io.BufferedWriter(raw),
            encoding=sys.stdout.encoding,
            errors="backslashreplace",
            line_buffering=sys.stdout.line_buffering,
            write_through=is_unbuffered,
        )


def _end_without_output(error: _OutputError) -> NoReturn:
    discard(sys.stdout)
    if error.errno == errno.EPIPE:
        _exit_now(CLOSED_PIPE_STATUS)
    _end(f"the standard output cannot be written ({error.strerror})", USER_ERROR_STATUS)


def _end(message: str, status: int) -> NoReturn:
    with suppress(OSError):
        print("error:", " ".join(message.splitlines()), file=sys.stderr)
    _exit_now(status)


def _exit_now(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)
