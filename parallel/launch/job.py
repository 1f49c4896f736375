"""The processes of a job: how they start, whose output is printed, and how they end together.

Every process runs under a guard (``parallel.launch.guard``) on its own machine. The launcher sends
the guard the names of signals through a pipe, and the guard ends its process when the pipe breaks.
This module is the launcher's side: it watches which processes end, decides what that means for the
others, and how long they may take to end.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Callable, Optional, Union

from parallel.launch import guard, ssh
from parallel.parameter_server.assignment import SCHEDULER, WORKER
from runtime.process.terminal import one_line
from runtime.stopping import SAME_REQUEST_SECONDS

# For workers to write a checkpoint after a signal to stop.
_CHECKPOINT_SECONDS = 15.0
# For processes to end after SIGTERM, before they are killed.
_END_SECONDS = 4.0
_GIVE_UP_SECONDS = 3.0
_REST_OF_OUTPUT_SECONDS = 2.0
# Python handles a signal that comes just before a wait only after it, so waits are short.
_POLL_SECONDS = 0.2
# To one host at a time: from its tenth connection on that has not logged in yet, an ssh server as
# it is installed refuses some (``MaxStartups``).
_MOST_LOGINS = 8
_STATUS_OF_SIGNALS = 128
_STANDARD_OUTPUT, _STANDARD_ERROR = 1, 2
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class ProcessSpec:
    """A process of a job, before it is started."""

    role: str
    """Worker, server or scheduler."""
    number: int
    """Among those of its role."""
    host: str
    command: Sequence[str]
    """Runs a command under a guard, see ``guarded``."""
    variables: Mapping[str, str]
    """Environment variables, besides those of the launcher."""
    is_remote: bool = False
    """True if the command runs by ssh, in the same folder of its host."""

    def __str__(self) -> str:
        return self.role if self.role == SCHEDULER else f"{self.role} {self.number}"


def guarded(command: Sequence[str], sharers: int) -> list[str]:
    """Return what runs a command under a guard on a machine whose processors workers share."""
    return [sys.executable, "-m", "parallel.launch.guard", str(sharers), *command]


def run(specs: Sequence[ProcessSpec], *, tolerates: bool) -> int:
    """Run the processes of a job until it ends; none of them is left.

    With ``tolerates`` the job continues without a worker that died.

    Returns:
        0 when all workers have ended with 0 (with ``tolerates``, any of them); otherwise the status
        of the process that died first, or 128 + the signal by which the launcher was stopped.
    """
    job = _RunningJob(sum(spec.role == WORKER for spec in specs), tolerates)
    try:
        for spec in specs:
            job.start(spec)
        while job.status is None:
            job.take_event()
        return job.status
    finally:
        job.end()


class _RunningJob:
    def __init__(self, workers: int, tolerates: bool) -> None:
        self.status: Optional[int] = None
        """The job's status as soon as it is over."""
        self._workers, self._tolerates = workers, tolerates
        # Not queue.Queue, for whose lock a signal handler could wait forever.
        self._events: _Events = queue.SimpleQueue()
        self._running: list[_Process] = []
        self._ended_workers: list[int] = []
        self._asked_at = -math.inf
        self._handlers = {
            number: signal.signal(number, lambda number, _: self._events.put(number))
            for number in _STOP_SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }

    def start(self, spec: ProcessSpec) -> None:
        """Start a process, unless the job is over before it may log in to its host."""
        while self.status is None:
            same_host = (process for process in self._running if process.spec.host == spec.host)
            logins = sum(not process.has_begun.is_set() for process in same_host)
            if logins < _MOST_LOGINS and self._events.empty():
                self._running.append(_Process(spec, self._events))
                return
            self.take_event()

    def take_event(self) -> None:
        """Wait some time for an event, and do what follows from it."""
        event = self._next_event()
        if isinstance(event, _Process):
            self._heed_end(event)
        elif event is not None:
            self._stop(event)

    def end(self) -> None:
        """End the processes that are left, with SIGTERM and then with SIGKILL."""
        if not self._end(self._running, signal.SIGTERM, _END_SECONDS):
            self._end(self._running, signal.SIGKILL, _GIVE_UP_SECONDS, heeds_signals=False)
        for process in self._running:
            # Its guard does not answer, or the connection to it is broken.
            _announce(f"{process.spec} on {process.spec.host} could not be ended; look there")
            process.kill()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _next_event(self) -> Union[_Process, int, None]:
        with suppress(queue.Empty):
            return self._events.get(timeout=_POLL_SECONDS)
        return None

    def _heed_end(self, ended: _Process) -> None:
        self._running.remove(ended)
        is_worker = ended.spec.role == WORKER
        if not is_worker or (ended.status and not self._tolerates):
            _announce(f"{ended}; ending the job")
            self.status = ended.status or 1
            return
        if ended.status:
            _announce(f"{ended}; the job goes on without it")
        self._ended_workers.append(ended.status)
        if len(self._ended_workers) == self._workers:
            self.status = 0 if 0 in self._ended_workers else self._ended_workers[0]

    def _stop(self, number: int) -> None:
        """Give the workers time for checkpoints; a second signal ends it."""
        self._asked_at = time.monotonic()
        workers = [process for process in self._running if process.spec.role == WORKER]
        _announce(f"{signal.Signals(number).name}: asking the workers to stop")
        sent = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        self._end(workers, sent, _CHECKPOINT_SECONDS)
        self.status = _STATUS_OF_SIGNALS + number

    def _end(
        self,
        processes: Iterable[_Process],
        number: signal.Signals,
        seconds: float,
        heeds_signals: bool = True,
    ) -> bool:
        """Send a signal; returns whether all end in time, which a signal to the launcher ends."""
        awaited = set(processes)
        for process in awaited:
            process.send_signal(number)
        end = time.monotonic() + seconds
        while awaited and time.monotonic() < end:
            event = self._next_event()
            if isinstance(event, _Process):
                self._running.remove(event)
                awaited.discard(event)
            elif event is not None and heeds_signals:
                # One that comes at once is the same request as the one before.
                if time.monotonic() > self._asked_at + SAME_REQUEST_SECONDS:
                    return False
        return not awaited


class _Process:
    """A running process of the job: its guard, or the ssh client that is connected to its guard."""

    def __init__(self, spec: ProcessSpec, events: _Events) -> None:
        self.spec, self.status = spec, 0
        self.has_begun = threading.Event()
        self._events = events
        self._process = subprocess.Popen(
            ssh.command(spec.host, spec.command) if spec.is_remote else spec.command,
            env=None if spec.is_remote else {**ssh.variables_with_programs(), **spec.variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # Ctrl-C in a terminal reaches the launcher alone.
            start_new_session=True,
        )
        if spec.is_remote:
            self._write(ssh.first_input(spec.variables))
            _start(self._await_begin)
        self._printers = [
            _start(self._print_lines, self._process.stdout, _STANDARD_OUTPUT),
            _start(self._print_lines, self._process.stderr, _STANDARD_ERROR),
        ]
        _start(self._await_end)

    def __str__(self) -> str:
        reason = ""
        if self.status == ssh.STATUS_OF_SSH:
            reason = " (ssh: no connection, or one that broke)"
        elif self.status > _STATUS_OF_SIGNALS:
            number = self.status - _STATUS_OF_SIGNALS
            reason = "".join(f" ({one.name})" for one in signal.Signals if one == number)
        return f"{self.spec} on {self.spec.host} ended with status {self.status}{reason}"

    def send_signal(self, number: signal.Signals) -> None:
        """Have the guard send a signal to the process."""
        self._write(f"{number.name.removeprefix('SIG')}\n".encode())

    def kill(self) -> None:
        """Kill the guard or ssh client on this machine."""
        self._process.kill()

    def _write(self, data: bytes) -> None:
        """Write to the input of the guard, unless it has ended, which closes its input."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(data)

    def _begin(self) -> None:
        """Let the next process log in to this host."""
        if not self.has_begun.is_set():
            self.has_begun.set()
            self._events.put(None)

    def _await_begin(self) -> None:
        """End a connection that does not lead to a guard: ssh waits for a silent server forever."""
        if not self.has_begun.wait(ssh.ANSWER_SECONDS) and self._process.poll() is None:
            _announce(
                str(ssh.unreachable(self.spec.host, f"no answer in {ssh.ANSWER_SECONDS:.0f} s"))
            )
            self.kill()

    def _await_end(self) -> None:
        status = self._process.wait()
        for thread in self._printers:
            thread.join(_REST_OF_OUTPUT_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.status = _STATUS_OF_SIGNALS - status if status < 0 else status
        self._events.put(self)
        # After the event: no process starts when the end of this one ends the job.
        self._begin()

    def _print_lines(self, output: IO[bytes], to: int) -> None:
        """Print the lines of the process, each with the name of the process before it."""
        rest = b""
        try:
            while chunk := output.read(1 << 16):
                # A progress bar ends its line with a carriage return.
                *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
                if to == _STANDARD_OUTPUT:
                    # The client of ssh itself prints errors alone: this comes after the login.
                    self._begin()
                    lines = [line for line in lines if line != guard.BEGUN]
                _print(self.spec, lines, to)
            _print(self.spec, [rest], to)
            output.close()
        except BrokenPipeError:
            self._events.put(signal.SIGPIPE)


_Events = queue.SimpleQueue[Union[_Process, int, None]]
_print_lock = threading.Lock()


def _start(target: Callable[..., None], *args: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread


def _print(name: object, lines: Iterable[bytes], to: int) -> None:
    shown = (one_line(line.decode(errors="backslashreplace")) for line in lines if line)
    text = "".join(f"{name}: {line}\n" for line in shown).encode()
    with _print_lock:
        while text:
            text = text[os.write(to, text) :]


def _announce(message: str) -> None:
    _print("launch", [message.encode()], _STANDARD_ERROR)
