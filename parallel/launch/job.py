"""The processes of a job: how they start, whose output is printed, and how they end together.

Every process runs under a guard (``parallel.launch.guard``) on its own machine. The launcher sends
the guard the names of signals through a pipe, and the guard ends its process when the pipe breaks.
This module is the launcher's side: it watches which processes end, decides what that means for the
others, and how long they may take to end.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from subprocess import PIPE
from typing import Any, Optional

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

    async def run_all() -> int:
        return await _RunningJob(specs, tolerates).run()

    return asyncio.run(run_all())


class _RunningJob:
    def __init__(self, specs: Sequence[ProcessSpec], tolerates: bool) -> None:
        self._tolerates = tolerates
        self._workers = sum(spec.role == WORKER for spec in specs)
        self._ended_workers: list[int] = []
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The job's status as soon as it is over."""
        self.signals: asyncio.Queue[int] = asyncio.Queue()
        self._asked_at = -math.inf
        logins = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(_MOST_LOGINS))
        self._running: dict[_Process, asyncio.Task[None]] = {}
        for spec in specs:
            process = _Process(spec, self)
            self._running[process] = asyncio.create_task(process.run(logins[spec.host]))

    async def run(self) -> int:
        """Return the status of the job when none of its processes is left."""
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self.signals.put_nowait, number)
        asked = asyncio.create_task(self.signals.get())
        tasks = [*self._running.values()]
        ended = asyncio.create_task(asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION))
        first: set[asyncio.Future[Any]] = {self.status, asked, ended}
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if asked.done() and not self.status.done():
                await self._stop(asked.result())
            elif not self.status.done():
                # A process could not be started.
                for task in ended.result()[0]:
                    task.result()
            return self.status.result()
        finally:
            asked.cancel()
            # If there is none yet: nothing is said of the others.
            self.status.cancel()
            await self._end(self._running, signal.SIGTERM, _END_SECONDS)
            # No signal shortens this.
            self._asked_at = math.inf
            await self._end(self._running, signal.SIGKILL, _GIVE_UP_SECONDS)
            for process in self._running:
                # Its guard does not answer, or the connection to it is broken.
                _announce(f"{process.spec} on {process.spec.host} could not be ended; look there")
                process.kill()
            if self._running:
                await asyncio.wait([*self._running.values()], timeout=_GIVE_UP_SECONDS)

    def heed_end(self, ended: _Process) -> None:
        """Decide what the end of a process means for the others."""
        del self._running[ended]
        if self.status.done():
            return
        is_worker = ended.spec.role == WORKER
        if not is_worker or (ended.status and not self._tolerates):
            _announce(f"{ended}; ending the job")
            self.status.set_result(ended.status or 1)
            return
        if ended.status:
            _announce(f"{ended}; the job goes on without it")
        self._ended_workers.append(ended.status)
        if len(self._ended_workers) == self._workers:
            self.status.set_result(0 if 0 in self._ended_workers else self._ended_workers[0])

    async def _stop(self, number: int) -> None:
        """Give the workers time for checkpoints; a second signal ends it."""
        self._asked_at = time.monotonic()
        self.status.set_result(_STATUS_OF_SIGNALS + number)
        _announce(f"{signal.Signals(number).name}: asking the workers to stop")
        workers = [process for process in self._running if process.spec.role == WORKER]
        sent = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        await self._end(workers, sent, _CHECKPOINT_SECONDS)

    async def _end(
        self, processes: Iterable[_Process], number: signal.Signals, seconds: float
    ) -> None:
        """Send a signal, and wait until all have ended; a signal to the launcher ends the wait."""
        for process in [one for one in self._running if one.is_waiting]:
            self._running.pop(process).cancel()
        awaited = {self._running[one]: one for one in processes if one in self._running}
        for process in awaited.values():
            process.send_signal(number)
        if awaited:
            asked = asyncio.create_task(self._ask_again())
            first: set[asyncio.Future[Any]] = {asked, asyncio.create_task(asyncio.wait(awaited))}
            await asyncio.wait(first, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()

    async def _ask_again(self) -> None:
        """Wait for a signal; one that comes at once is the same request as the one before."""
        is_same = True
        while is_same:
            await self.signals.get()
            is_same = time.monotonic() < self._asked_at + SAME_REQUEST_SECONDS


class _Process:
    """A process of the job: its guard, or the ssh client that is connected to its guard."""

    def __init__(self, spec: ProcessSpec, job: _RunningJob) -> None:
        self.spec, self.status, self.is_waiting = spec, 0, True
        self._job, self._has_begun = job, asyncio.Event()

    def __str__(self) -> str:
        reason = ""
        if self.status == ssh.STATUS_OF_SSH:
            reason = " (ssh: no connection, or one that broke)"
        elif self.status > _STATUS_OF_SIGNALS:
            number = self.status - _STATUS_OF_SIGNALS
            reason = "".join(f" ({one.name})" for one in signal.Signals if one == number)
        return f"{self.spec} on {self.spec.host} ended with status {self.status}{reason}"

    async def run(self, logins: asyncio.Semaphore) -> None:
        """Run it to its end, unless the job is over before it may log in to its host."""
        async with logins:
            if self._job.status.done():
                return
            spec = self.spec
            self._process = await ssh.start(
                ssh.command(spec.host, spec.command) if spec.is_remote else spec.command,
                env=None if spec.is_remote else {**ssh.variables_with_programs(), **spec.variables},
                **dict.fromkeys(("stdin", "stdout", "stderr"), PIPE),
            )
            self.is_waiting = False
            if spec.is_remote:
                self._write(ssh.first_input(spec.variables))
            ended = asyncio.create_task(self._await_end())
            # ssh waits for a silent server forever.
            seconds = ssh.ANSWER_SECONDS
            try:
                await asyncio.wait_for(self._has_begun.wait(), seconds if spec.is_remote else None)
            except asyncio.TimeoutError:
                _announce(str(ssh.unreachable(spec.host, f"no answer in {seconds:.0f} s")))
                self.kill()
        await ended

    def send_signal(self, number: signal.Signals) -> None:
        """Have the guard send a signal to the process."""
        self._write(f"{number.name.removeprefix('SIG')}\n".encode())

    def kill(self) -> None:
        """Kill the guard or ssh client on this machine."""
        with suppress(ProcessLookupError):
            self._process.kill()

    def _write(self, data: bytes) -> None:
        """Write to the input of the guard, unless it has ended, which closes its input."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    async def _await_end(self) -> None:
        outputs = {_STANDARD_OUTPUT: self._process.stdout, _STANDARD_ERROR: self._process.stderr}
        printers = {asyncio.create_task(self._print_lines(one, to)) for to, one in outputs.items()}
        status = await self._process.wait()
        await asyncio.wait(printers, timeout=_REST_OF_OUTPUT_SECONDS)
        self.status = _STATUS_OF_SIGNALS - status if status < 0 else status
        self._job.heed_end(self)
        # After that: no process starts when the end of this one ends the job.
        self._has_begun.set()

    async def _print_lines(self, output: Optional[asyncio.StreamReader], to: int) -> None:
        """Print the lines of the process, each with the name of the process before it."""
        assert output is not None
        rest = b""
        try:
            while chunk := await output.read(1 << 16):
                # A progress bar ends its line with a carriage return.
                *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
                if to == _STANDARD_OUTPUT:
                    # The client of ssh itself prints errors alone: this comes after the login.
                    self._has_begun.set()
                    lines = [line for line in lines if line != guard.BEGUN]
                _print(self.spec, lines, to)
            _print(self.spec, [rest], to)
        except BrokenPipeError:
            self._job.signals.put_nowait(signal.SIGPIPE)


def _print(name: object, lines: Iterable[bytes], to: int) -> None:
    shown = (one_line(line.decode(errors="backslashreplace")) for line in lines if line)
    text = "".join(f"{name}: {line}\n" for line in shown).encode()
    while text:
        text = text[os.write(to, text) :]


def _announce(message: str) -> None:
    _print("launch", [message.encode()], _STANDARD_ERROR)
