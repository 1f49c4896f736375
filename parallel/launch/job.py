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
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
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
_POLL_SECONDS = 0.5
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
    sharers: int
    """Workers that share the processors of its machine."""
    command: Sequence[str]
    variables: Mapping[str, str]
    """Environment variables, besides those of the launcher."""

    def __str__(self) -> str:
        return self.role if self.role == SCHEDULER else f"{self.role} {self.number}"


Starter = Callable[[ProcessSpec], tuple[list[str], Optional[dict[str, str]]]]
"""Returns the local command that runs a process under a guard, and its environment.

None for a command of ssh, on whose input the variables follow.
"""


def locally(spec: ProcessSpec) -> tuple[list[str], Optional[dict[str, str]]]:
    """Run a process on this machine."""
    return _guarded(spec), {**ssh.variables_with_programs(), **spec.variables}


def by_ssh(spec: ProcessSpec) -> tuple[list[str], Optional[dict[str, str]]]:
    """Run a process on its host in the same folder.

    The scheduler runs on this machine, whose address all processes have.
    """
    if spec.role == SCHEDULER:
        return locally(spec)
    return ssh.command(spec.host, _guarded(spec)), None


def _guarded(spec: ProcessSpec) -> list[str]:
    return [sys.executable, "-m", "parallel.launch.guard", str(spec.sharers), *spec.command]


def run(specs: Iterable[ProcessSpec], start: Starter, *, tolerates: bool) -> int:
    """Run the processes of a job until it ends; none of them is left.

    With ``tolerates`` the job continues without a worker that died.

    Returns:
        0 when all workers have ended with 0 (with ``tolerates``, any of them); otherwise the status
        of the process that died first, or 128 + the signal by which the launcher was stopped.
    """
    job = _RunningJob(tolerates)
    try:
        for spec in specs:
            if not job.start(spec, start):
                break
        return job.watch()
    finally:
        job.end()


class _RunningJob:
    def __init__(self, tolerates: bool) -> None:
        self._tolerates = tolerates
        # Processes that have ended, and numbers of signals to the launcher. Not queue.Queue, for
        # whose lock a signal handler could wait forever.
        self._events: _Events = queue.SimpleQueue()
        # Events that came while processes were started.
        self._waiting: deque[Union[_Process, int]] = deque()
        self._running: list[_Process] = []
        self._has_success = False
        self._first_failure = 0
        self._asked_at = -math.inf
        self._handlers = {
            number: signal.signal(number, self._handle_signal)
            for number in _STOP_SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }

    def start(self, spec: ProcessSpec, start: Starter) -> bool:
        """Start a process; returns False, without it, if the job is about to end."""
        command, environment = start(spec)
        while not self._is_ending():
            beginning = [
                process.has_begun
                for process in self._running
                if process.spec.host == spec.host and not process.has_begun.is_set()
            ]
            if len(beginning) < _MOST_LOGINS:
                self._running.append(_Process(spec, command, environment, self._events))
                return True
            beginning[0].wait(_POLL_SECONDS)
        return False

    def _is_ending(self) -> bool:
        """True if a signal has come, or a process has ended in a way that ends the job."""
        with suppress(queue.Empty):
            while True:
                self._waiting.append(self._events.get_nowait())
        return any(isinstance(event, int) or not self._is_borne(event) for event in self._waiting)

    def _is_borne(self, ended: _Process) -> bool:
        """True if the job continues, with the other workers, after the end of a process."""
        return ended.spec.role == WORKER and (ended.status == 0 or self._tolerates)

    def watch(self) -> int:
        """Wait until the job is over; returns its status."""
        status = None
        while status is None:
            event = self._next_event(math.inf)
            if isinstance(event, _Process):
                status = self._status_after(event)
            elif event is not None:
                status = self._stop(event)
        return status

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

    def _handle_signal(self, number: int, _: Optional[FrameType]) -> None:
        self._events.put(number)

    def _status_after(self, ended: _Process) -> Optional[int]:
        """The job's status when the end of a process ends it; None if it continues."""
        self._running.remove(ended)
        if not self._is_borne(ended):
            _announce(f"{ended}; ending the job")
            return ended.status or 1
        if ended.status == 0:
            self._has_success = True
        else:
            self._first_failure = self._first_failure or ended.status
            _announce(f"{ended}; the job goes on without it")
        if any(process.spec.role == WORKER for process in self._running):
            return None
        return 0 if self._has_success else self._first_failure

    def _stop(self, number: int) -> int:
        """Give the workers time for checkpoints; a second signal ends it."""
        self._asked_at = time.monotonic()
        workers = [process for process in self._running if process.spec.role == WORKER]
        _announce(f"{signal.Signals(number).name}: asking the workers to stop")
        sent = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        self._end(workers, sent, _CHECKPOINT_SECONDS)
        return _STATUS_OF_SIGNALS + number

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
        while awaited:
            event = self._next_event(end)
            if isinstance(event, _Process):
                self._running.remove(event)
                awaited.discard(event)
                continue
            # One that comes at once is the same request as the one before.
            is_new = time.monotonic() - self._asked_at > SAME_REQUEST_SECONDS
            if event is None or (heeds_signals and is_new):
                return False
        return True

    def _next_event(self, end: float) -> Optional[Union[_Process, int]]:
        """The next event, or None at a moment of the clock.

        Waits for short times: Python handles a signal that comes just before a wait only after it.
        """
        if self._waiting:
            return self._waiting.popleft()
        while (seconds := end - time.monotonic()) > 0:
            with suppress(queue.Empty):
                return self._events.get(timeout=min(seconds, _POLL_SECONDS))
        return None


class _Process:
    """A running process of the job: its guard, or the ssh client that is connected to its guard."""

    def __init__(
        self,
        spec: ProcessSpec,
        command: Sequence[str],
        environment: Optional[Mapping[str, str]],
        events: _Events,
    ) -> None:
        self.spec, self.status = spec, 0
        self.has_begun = threading.Event()
        self._events = events
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # Ctrl-C in a terminal reaches the launcher alone.
            start_new_session=True,
        )
        if environment is None:
            self._write(ssh.first_input(spec.variables))
        self._printers = [
            _start(self._print_lines, self._process.stdout, _STANDARD_OUTPUT),
            _start(self._print_lines, self._process.stderr, _STANDARD_ERROR),
        ]
        _start(self._await_end)
        if command[0] == ssh.CLIENT[0]:
            _start(self._await_begin)

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

    def _write(self, data: bytes) -> None:
        """Write to the input of the guard, unless it has ended, which closes its input."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(data)

    def kill(self) -> None:
        """Kill the guard or ssh client on this machine."""
        self._process.kill()

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
        # After the event: who waits for this starts no process if the end of this one ends the job.
        self.has_begun.set()

    def _print_lines(self, output: IO[bytes], to: int) -> None:
        """Print the lines of the process, each with the name of the process before it."""
        rest = b""
        try:
            while chunk := output.read(1 << 16):
                # A progress bar ends its line with a carriage return.
                *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
                if to == _STANDARD_OUTPUT:
                    # The client of ssh itself prints errors alone: this comes after the login.
                    self.has_begun.set()
                    lines = [line for line in lines if line != guard.BEGUN]
                _print(self.spec, lines, to)
            _print(self.spec, [rest] if rest else [], to)
            output.close()
        except BrokenPipeError:
            self._events.put(signal.SIGPIPE)


_Events = queue.SimpleQueue[Union[_Process, int]]
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
