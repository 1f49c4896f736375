"""How a program ends: errors that the user can correct, signals, and what it says about them.

A wrong option or a broken file needs no traceback, least of all one per rank. It is raised as
``ConfigError`` or ``DataError`` with one line that names the value, the reason and the remedy;
``run_program`` prints the line and ends the process with status 2, even while other ranks wait for
this one in a collective operation. A standard output that fails (a full disk, a closed pipe) is
reported in the same way, and so is a memory-mapped file that is cut off while it is read: to read
a page that is no longer in its file raises SIGBUS, which ends a process without a word, and no
check before the access could prevent that.

Python cleans up after an exception, not when a signal ends the process. A tool that may stop
anywhere (``run_stoppable``) turns the signal into an exception. A training run must not stop
anywhere, because its ranks have to agree on their last update: it polls a ``StopRequest``. The exit
status is the shell's for the signal: 130 for Ctrl-C, 143 for SIGTERM.

Names of files, folders and sets come from others. An escape sequence in one moves the cursor,
changes the title or the keys of the terminal; a bidirectional override shows another name than the
file has. Such characters are written as Python writes them; letters of any script stay as they are.
"""

from __future__ import annotations

import ctypes
import difflib
import errno
import io
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, BinaryIO, NoReturn, Optional, TextIO, cast

USER_ERROR_STATUS = 2
_CRASH_STATUS = 1
# A shell reports this plus the signal for a program that a signal has ended.
_SIGNAL_STATUS = 128
_RANK_NAMES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "GROUPING_WORKER")
_RANK_COUNTS = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE")
LOCAL_COUNTS = ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
_LAUNCHER_GRACE_SECONDS = 10.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_REQUEST_SECONDS = 1.0
"""A signal so soon after the first one is the same request: ``timeout`` and others send theirs to a
program and then to its process group, in which the program gets it again."""
# mpirun ends all ranks when it gets SIGINT or SIGTERM, but forwards these two to the ranks; so
# run.sh sends them instead.
_FORWARDED: dict[int, int] = {signal.SIGUSR1: signal.SIGINT, signal.SIGUSR2: signal.SIGTERM}
# C0, DEL and C1; line and paragraph separators; surrogates, which stand for bytes of no UTF-8;
# marks, embeddings, overrides and isolates of bidirectional text (Unicode 15, UAX 9, table 4).
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0xD800, 0xE000))
_BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_LINE_ESCAPES = {code: repr(chr(code))[1:-1] for code in (*_CONTROLS, *_BIDIRECTIONAL)}
_ESCAPES = {code: text for code, text in _LINE_ESCAPES.items() if chr(code) not in "\n\t"}


class UserError(Exception):
    """An error that the user can correct; the message is one line with the remedy."""


class ConfigError(UserError):
    """A wrong option or combination of options: the same on every rank."""


class DataError(UserError):
    """A missing, broken or contradictory file: possibly on one rank only."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return ``" (did you mean 'x'?)"`` for the closest choice, or ``""`` if none is close."""
    # The same word in other letters is closer than any other.
    by_lower = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def launcher_number(names: Iterable[str], default: int) -> int:
    """Return the number in the first of these variables of launchers that is set."""
    return next((int(os.environ[name]) for name in names if name in os.environ), default)


def is_launched() -> bool:
    """Return True if ``horovodrun``, ``mpirun`` or ``parallel.launch`` started this process."""
    return any(name in os.environ for name in _RANK_NAMES)


def run_program(main: Callable[[], Optional[int]]) -> NoReturn:
    """Run a program and end the process with its exit status.

    A ``UserError`` is printed as one line and gives status 2; what may be wrong on one host alone
    names it, if ranks run on several. Any other exception keeps its traceback and gives status 1.
    Neither runs exit handlers: Horovod's would wait for ranks that in turn wait for this one. Since
    a launcher ends all ranks as soon as the first has failed, a rank other than 0 reports a
    ``ConfigError`` only if it is still alive some seconds later, when rank 0 evidently does not
    have the same error. A rank whose collective fails waits as long: the rank that is missing has
    failed first, and its status is to be the job's.

    A standard output that cannot be written gives one line and status 2; a pipe that its reader has
    closed gives status 141 and no line. Characters that the encoding lacks, and those that a
    terminal obeys, are written as escapes. A mapped file that is cut off is reported as a
    ``DataError``, and so is too little memory.
    """
    _open_outputs()
    # In the thread that has read the page, as Python's own handlers could not.
    ctypes.CDLL(None).signal(int(signal.SIGBUS), _end_for_lost_page)
    try:
        status = main() or 0
        sys.stdout.flush()
    except ConfigError as error:
        host = ""
        if launcher_number(_RANK_NAMES, default=0) != 0:
            time.sleep(_LAUNCHER_GRACE_SECONDS)
            host = _host()
        _end(f"{host}{error}", USER_ERROR_STATUS)
    except UserError as error:
        _end(f"{_host()}{error}", USER_ERROR_STATUS)
    except _OutputError as error:
        if error.errno == errno.EPIPE:
            _exit_now(_SIGNAL_STATUS + signal.SIGPIPE)
        _end(f"the standard output cannot be written ({error.strerror})", USER_ERROR_STATUS)
    except MemoryError as error:
        reason = f"{_host()}the memory does not suffice ({str(error) or 'MemoryError'})"
        _end(f"{reason}; take less at a time, such as a smaller --batch-size", USER_ERROR_STATUS)
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        # This rank fails only because another one has ended.
        if is_launched() and "horovod" in f"{type(error).__name__} {error}".lower():
            time.sleep(_LAUNCHER_GRACE_SECONDS)
        _exit_now(_CRASH_STATUS)
    sys.exit(status)


def _host() -> str:
    """Return the beginning of a line about this host alone, where ranks run on several."""
    ranks = launcher_number(_RANK_COUNTS, default=1)
    is_one_host = launcher_number(LOCAL_COUNTS, default=ranks) == ranks
    return "" if is_one_host else f"{os.uname().nodename}: "


def discard(stream: TextIO) -> None:
    """Discard everything that is still written to a stream which has failed for good."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), stream.fileno())
        stream.flush()


class _OutputError(OSError):
    """The standard output cannot be written."""


class _StandardOutput(io.FileIO):
    """Distinguishes its errors from those of other files."""

    def write(self, data: Any) -> int:
        """Write as ``io.FileIO`` does."""
        try:
            return super().write(data)
        except OSError as error:
            raise _OutputError(error.errno, error.strerror) from None


def _open_outputs() -> None:
    """Let both outputs take any text; one that the parent process has closed discards it."""
    for name, kind in (("stderr", io.FileIO), ("stdout", _StandardOutput)):
        former = getattr(sys, name)
        if former is None:
            setattr(sys, name, open(os.devnull, "w"))
        elif isinstance(former, io.TextIOWrapper):
            former.flush()
            raw = kind(former.fileno(), "wb", closefd=False)
            output = PrintableOutput(
                cast(BinaryIO, raw) if former.write_through else io.BufferedWriter(raw),
                encoding=former.encoding,
                errors="backslashreplace",
                line_buffering=former.line_buffering,
                write_through=former.write_through,
            )
            setattr(sys, name, output)


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _end_for_lost_page(_: int) -> None:
    """End the process; the kernel would repeat the signal for ever if this function returned."""
    try:
        _end(
            f"{_host()}{_cut_file()} was cut off while it was in use, or its disk fails or is full "
            "(SIGBUS); make the file complete and start the same command again",
            USER_ERROR_STATUS,
        )
    finally:
        os._exit(USER_ERROR_STATUS)


def _cut_file() -> str:
    """Return the path of a mapped file that is shorter than what is mapped of it, see proc(5)."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            span, access, offset, _, _, *path = line.rstrip("\n").split(None, 5)
            start, stop = (int(word, 16) for word in span.split("-"))
            last_page = int(offset, 16) + stop - start - mmap.PAGESIZE
            with suppress(OSError):
                # Libraries have gaps that nobody can read, which may reach beyond their files.
                if path and access[0] == "r" and os.stat(path[0]).st_size <= last_page:
                    return path[0]
    return "a mapped file"


def _end(message: str, status: int) -> NoReturn:
    with suppress(OSError):
        print("error:", one_line(" ".join(message.splitlines())), file=sys.stderr)
    _exit_now(status)


def _exit_now(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(status)


class Stopped(BaseException):
    """A signal stops the program. Not an ``Exception``, so that no handler of failures gets it."""


class StopRequest:
    """The request of a signal to end this process.

    A later SIGINT or SIGTERM ends it at once. What mpirun forwards is one request however often it
    comes, since run.sh repeats it.
    """

    def __init__(self) -> None:
        self.status = 0
        """The exit status that belongs to the request, 0 without one."""
        self._requested_at = 0.0

    def listen(self) -> None:
        """Take signals as requests, but for those that the parent process had this one ignore."""
        for number in (signal.SIGINT, signal.SIGTERM, *_FORWARDED):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._receive)

    def _receive(self, number: int, _: Optional[FrameType]) -> None:
        now = time.monotonic()
        if self.status:
            is_later = now - self._requested_at > SAME_REQUEST_SECONDS
            if is_later and number not in _FORWARDED:
                os._exit(self.status)
            return
        self._requested_at = now
        self.status = _SIGNAL_STATUS + _FORWARDED.get(number, number)


def run_stoppable(main: Callable[[], Optional[int]]) -> NoReturn:
    """Run a program that cleans up when Ctrl-C, ``kill`` or a closed terminal stops it.

    It ends with one line and the shell's status for the signal. A signal that the parent process
    had it ignore (``nohup``) stays ignored.
    """
    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        run_program(main)
    except Stopped as stopped:
        (number,) = stopped.args
        name = signal.Signals(number).name
        print(f"stopped by {name}: no unfinished file is left behind", file=sys.stderr)
        sys.stdout.flush()
        # Not sys.exit, which would wait for the threads.
        os._exit(_SIGNAL_STATUS + number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay a stop to the end of a step that must not be left half done."""
    waiting: list[int] = []
    held = [number for number in _STOP_SIGNALS if signal.getsignal(number) is _stop]
    for number in held:
        signal.signal(number, lambda number, _: waiting.append(number))
    try:
        yield
    finally:
        for number in held:
            signal.signal(number, _stop)
    if waiting:
        _stop(waiting[0], None)


def _stop(number: int, _: Optional[FrameType]) -> None:
    # A second signal would interrupt the removal of files.
    for other in _STOP_SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)


def printable(text: str) -> str:
    """Return a text of several lines with control characters and text direction escaped."""
    return text.translate(_ESCAPES)


def one_line(text: str) -> str:
    """Return a text with tabs and line breaks escaped as well."""
    return text.translate(_LINE_ESCAPES)


def print_line(text: str, *, file: Optional[TextIO] = None, flush: bool = False) -> None:
    """Print a text as one line, on the standard output unless ``file`` is given."""
    print(one_line(text), file=file, flush=flush)


class PrintableOutput(io.TextIOWrapper):
    """A standard output or error that escapes what it is given."""

    def write(self, text: str, /) -> int:
        """Write a text with control characters and text direction escaped."""
        # A progress bar starts each of its writes with a carriage return.
        start = text[:1] if text.startswith("\r") else ""
        super().write(start + printable(text[len(start) :]))
        return len(text)
