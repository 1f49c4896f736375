"""The processes of a job: started together, heard through one mouth, ended together.

Every process runs under a guard (``parallel.guard``) on its own machine, which is told through a
pipe what to do and ends its process by itself when that pipe breaks. Here stands the other end:
who has ended, what follows from that for the others, and how long they may take.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import IO, NamedTuple, Optional, Union

from parallel.launch.task import Starter, Task
from parallel.parameter_server.assignment import WORKER

CHECKPOINT_SECONDS = 15.0
"""For workers that are told to stop, to write a checkpoint."""
END_SECONDS = 4.0
"""From the request to end until the end."""
_GIVE_UP_SECONDS = 3.0
_REST_OF_OUTPUT_SECONDS = 2.0
_STATUS_OF_SIGNALS = 128
_STATUS_OF_SSH = 255
_STANDARD_OUTPUT, _STANDARD_ERROR = 1, 2
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Ended(NamedTuple):
    """A process is gone."""

    process: _Process
    status: int


_Event = Union[_Ended, int]
"""An end, or the number of a signal that this process got."""


def run(tasks: Iterable[Task], start: Starter, *, tolerates: bool) -> int:
    """Run a job to its end; no process of it is left.

    Args:
        tasks: its processes.
        start: how they are started.
        tolerates: whether the job goes on without a worker that died.

    Returns:
        0 when all workers have ended well (all that are left, if ``tolerates``); otherwise the
        status of the process that died first, or 128 + the signal that told the job to stop.
    """
    job = _Job(tolerates)
    try:
        for task in tasks:
            job.start(task, start)
        return job.watch()
    finally:
        job.end()


class _Job:
    def __init__(self, tolerates: bool) -> None:
        self._tolerates = tolerates
        # Not queue.Queue, whose lock the handler of a signal would wait for in vain.
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._running: list[_Process] = []
        self._has_ended_well = False
        self._first_death = 0
        self._handlers = {
            number: signal.signal(number, self._note)
            for number in _STOP_SIGNALS
            if signal.getsignal(number) is not signal.SIG_IGN
        }

    def start(self, task: Task, start: Starter) -> None:
        words, environment = start(task)
        self._running.append(_Process(task, words, environment, self._events))

    def watch(self) -> int:
        """Wait until the job is over; returns its status."""
        while True:
            event = self._events.get()
            if not isinstance(event, _Ended):
                return self._stop(event)
            status = self._judge(event)
            if status is not None:
                return status

    def end(self) -> None:
        """End whoever is left, first gently."""
        self._tell(self._running, signal.SIGTERM)
        if not self._wait(self._running, END_SECONDS):
            self._tell(self._running, signal.SIGKILL)
            self._wait(self._running, _GIVE_UP_SECONDS, heeds_signals=False)
        for process in self._running:
            # Its guard does not answer, or the way to it.
            _announce(f"{process.task} on {process.task.host} could not be ended; look there")
            process.kill()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._events.put(number)

    def _judge(self, event: _Ended) -> Optional[int]:
        """What the end of a process means for the job: its status, None if it goes on."""
        self._running.remove(event.process)
        task, status = event.process.task, event.status
        is_worker = task.role == WORKER
        if is_worker and status == 0:
            self._has_ended_well = True
        elif is_worker and self._tolerates:
            self._first_death = self._first_death or status
            _announce(f"{_describe(event)}; the job goes on without it")
        else:
            _announce(f"{_describe(event)}; ending the job")
            return status or 1
        if any(process.task.role == WORKER for process in self._running):
            return None
        return 0 if self._has_ended_well else self._first_death

    def _stop(self, number: int) -> int:
        """Let the workers write their checkpoints; a second signal ends the wait."""
        workers = [process for process in self._running if process.task.role == WORKER]
        _announce(f"{signal.Signals(number).name}: asking the workers to stop")
        self._tell(workers, signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
        self._wait(workers, CHECKPOINT_SECONDS)
        return _STATUS_OF_SIGNALS + number

    def _tell(self, processes: Iterable[_Process], number: signal.Signals) -> None:
        for process in processes:
            process.tell(number)

    def _wait(
        self, processes: Iterable[_Process], seconds: float, heeds_signals: bool = True
    ) -> bool:
        """Whether all of them have ended in time; a signal shortens the time."""
        awaited = set(processes)
        end = time.monotonic() + seconds
        while awaited:
            try:
                event = self._events.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return False
            if isinstance(event, _Ended):
                self._running.remove(event.process)
                awaited.discard(event.process)
            elif heeds_signals:
                return False
        return True


class _Process:
    """A task that runs: its guard, or the way to its guard."""

    def __init__(
        self,
        task: Task,
        words: Sequence[str],
        environment: Optional[Mapping[str, str]],
        events: queue.SimpleQueue[_Event],
    ) -> None:
        self.task = task
        self._events = events
        self._process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # Ctrl-C in a terminal is for the launcher, which decides.
            start_new_session=True,
        )
        outputs = {
            _STANDARD_OUTPUT: self._process.stdout,
            _STANDARD_ERROR: self._process.stderr,
        }
        self._speakers = [
            threading.Thread(target=self._repeat, args=(output, to), daemon=True)
            for to, output in outputs.items()
        ]
        for thread in (*self._speakers, threading.Thread(target=self._follow, daemon=True)):
            thread.start()

    def tell(self, number: signal.Signals) -> None:
        """Have the guard send a signal."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{number.name.removeprefix('SIG')}\n".encode())
        except OSError:
            # It has just ended.
            return

    def kill(self) -> None:
        """End what runs on this machine."""
        self._process.kill()

    def _follow(self) -> None:
        status = self._process.wait()
        for thread in self._speakers:
            thread.join(_REST_OF_OUTPUT_SECONDS)
        self._events.put(_Ended(self, _STATUS_OF_SIGNALS - status if status < 0 else status))

    def _repeat(self, output: IO[bytes], to: int) -> None:
        """Say whatever the process says, line by line, with its name before."""
        rest = b""
        try:
            while chunk := output.read(1 << 16):
                # A bar of progress overwrites its line by returning to its begin.
                *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
                _say(self.task, lines, to)
            _say(self.task, [rest] if rest else [], to)
        except BrokenPipeError:
            self._events.put(signal.SIGPIPE)


_one_at_a_time = threading.Lock()


def _say(name: object, lines: Iterable[bytes], to: int) -> None:
    text = b"".join(b"%s: %s\n" % (str(name).encode(), line) for line in lines if line)
    with _one_at_a_time:
        while text:
            text = text[os.write(to, text) :]


def _announce(message: str) -> None:
    _say("launch", [message.encode()], _STANDARD_ERROR)


def _describe(event: _Ended) -> str:
    """Who ended, where and how."""
    task, status = event.process.task, event.status
    reason = ""
    if status == _STATUS_OF_SSH:
        reason = " (ssh: no connection, or one that broke)"
    elif status > _STATUS_OF_SIGNALS:
        number = status - _STATUS_OF_SIGNALS
        names = [one.name for one in signal.Signals if one == number]
        reason = "".join(f" ({name})" for name in names)
    return f"{task} on {task.host} ended with status {status}{reason}"
