"""The processes of a job: how they start, whose output is printed, and how they end together.

Every process runs under a guard (``parallel.launch.guard``) on its own machine. The launcher sends
the guard the names of signals through a pipe, and the guard ends its process when the pipe breaks.
This module is the launcher's side: it watches which processes end, decides what that means for the
others, and how long they may take to end.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from subprocess import PIPE
from typing import Optional

from parallel.launch import guard, ssh
from parallel.parameter_server.assignment import SCHEDULER, WORKER
from runtime.errors import SAME_REQUEST_SECONDS, one_line

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
    """Runs a command under a guard."""
    variables: Mapping[str, str]
    """Environment variables, besides those of the launcher."""
    is_remote: bool = False
    """True if the command runs by ssh, in the same folder of its host."""

    def __str__(self) -> str:
        return self.role if self.role == SCHEDULER else f"{self.role} {self.number}"


def run(specs: Sequence[ProcessSpec], *, tolerates: bool) -> int:
    """Run the processes of a job until it ends; none of them is left.

    With ``tolerates`` the job continues without a worker that died.

    Returns:
        0 when all workers have ended with 0 (with ``tolerates``, any of them); otherwise the status
        of the process that died first, or 128 + the signal by which the launcher was stopped.
    """
    return asyncio.run(_run(specs, tolerates))


async def _run(specs: Sequence[ProcessSpec], tolerates: bool) -> int:
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()
    asked_at = loop.time()

    def ask(number: int) -> None:
        nonlocal asked_at
        if not stop.done():
            asked_at = loop.time()
            stop.set_result(number)
        elif number != signal.SIGPIPE and loop.time() > asked_at + SAME_REQUEST_SECONDS:
            # The guards end their processes when this one is gone.
            os._exit(_STATUS_OF_SIGNALS + number)

    for number in _STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, ask, number)
    logins = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(_MOST_LOGINS))
    processes = [_Process(spec, logins[spec.host], ask) for spec in specs]
    try:
        return await _watch(processes, stop, tolerates)
    finally:
        await _end(processes, signal.SIGTERM, _END_SECONDS)
        await _end(processes, signal.SIGKILL, _GIVE_UP_SECONDS)
        for process in processes:
            if not process.task.done():
                # Its guard does not answer, or the connection to it is broken.
                _announce(f"{process.spec} on {process.spec.host} could not be ended; look there")
                process.kill()
        await asyncio.wait([process.task for process in processes], timeout=_GIVE_UP_SECONDS)


async def _watch(processes: Sequence[_Process], stop: asyncio.Future[int], tolerates: bool) -> int:
    """Return the status of the job as soon as it is over, whatever still runs."""
    process_of = {process.task: process for process in processes}
    workers = [process for process in processes if process.spec.role == WORKER]
    ended: list[int] = []
    pending: set[asyncio.Future[int]] = {stop, *process_of}
    while len(ended) < len(workers):
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if stop in done:
            number = stop.result()
            _announce(f"{signal.Signals(number).name}: asking the workers to stop")
            sent = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
            await _end(workers, sent, _CHECKPOINT_SECONDS)
            return _STATUS_OF_SIGNALS + number
        for task in done:
            process, status = process_of[task], task.result()  # type: ignore[index]
            if process not in workers or (status and not tolerates):
                _announce(f"{process.ending(status)}; ending the job")
                return status or 1
            if status:
                _announce(f"{process.ending(status)}; the job goes on without it")
            ended.append(status)
    return 0 if 0 in ended else ended[0]


async def _end(processes: Iterable[_Process], number: signal.Signals, seconds: float) -> None:
    """Send a signal to those that run, and wait until all have ended."""
    left = [process for process in processes if not process.task.done()]
    for process in left:
        process.send_signal(number)
    if left:
        await asyncio.wait([process.task for process in left], timeout=seconds)


class _Process:
    """A process of the job: its guard, or the ssh client that is connected to its guard."""

    def __init__(
        self, spec: ProcessSpec, logins: asyncio.Semaphore, ask: Callable[[int], None]
    ) -> None:
        self.spec, self._logins, self._ask = spec, logins, ask
        self._process: Optional[asyncio.subprocess.Process] = None
        self.task = asyncio.create_task(self._run())
        """Returns the status of the process."""

    def ending(self, status: int) -> str:
        """Say how the process has ended."""
        reason = ""
        if status == ssh.STATUS_OF_SSH:
            reason = " (ssh: no connection, or one that broke)"
        elif status > _STATUS_OF_SIGNALS:
            number = status - _STATUS_OF_SIGNALS
            reason = "".join(f" ({one.name})" for one in signal.Signals if one == number)
        return f"{self.spec} on {self.spec.host} ended with status {status}{reason}"

    async def _run(self) -> int:
        spec = self.spec
        async with self._logins:
            self._process = process = await ssh.start(
                ssh.command(spec.host, spec.command) if spec.is_remote else spec.command,
                env=None if spec.is_remote else {**ssh.variables_with_programs(), **spec.variables},
                **dict.fromkeys(("stdin", "stdout", "stderr"), PIPE),
            )
            assert process.stdin is not None and process.stdout is not None
            assert process.stderr is not None
            if spec.is_remote:
                process.stdin.write(ssh.first_input(spec.variables))
            errors = asyncio.create_task(self._print_lines(process.stderr, _STANDARD_ERROR))
            # ssh waits for a silent server forever.
            seconds = ssh.ANSWER_SECONDS
            try:
                await asyncio.wait_for(_begin(process.stdout), seconds if spec.is_remote else None)
            except asyncio.TimeoutError:
                _announce(str(ssh.unreachable(spec.host, f"no answer in {seconds:.0f} s")))
                self.kill()
        output = asyncio.create_task(self._print_lines(process.stdout, _STANDARD_OUTPUT))
        status = await process.wait()
        await asyncio.wait({output, errors}, timeout=_REST_OF_OUTPUT_SECONDS)
        return _STATUS_OF_SIGNALS - status if status < 0 else status

    def send_signal(self, number: signal.Signals) -> None:
        """Have the guard send a signal to the process; one that has not started yet never does."""
        if self._process is None:
            self.task.cancel()
        else:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{number.name.removeprefix('SIG')}\n".encode())

    def kill(self) -> None:
        """Kill the guard or ssh client on this machine."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def _print_lines(self, output: asyncio.StreamReader, to: int) -> None:
        """Print the lines of the process, each with the name of the process before it."""
        rest = b""
        try:
            while chunk := await output.read(1 << 16):
                # A progress bar ends its line with a carriage return.
                *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
                _print(self.spec, lines, to)
            _print(self.spec, [rest], to)
        except BrokenPipeError:
            self._ask(signal.SIGPIPE)


async def _begin(output: asyncio.StreamReader) -> None:
    """Read up to the guard's first line, or to the end; a login shell may print lines before."""
    async for line in output:
        if line.rstrip() == guard.BEGUN:
            return


def _print(name: object, lines: Iterable[bytes], to: int) -> None:
    shown = (one_line(line.decode(errors="backslashreplace")) for line in lines if line)
    text = "".join(f"{name}: {line}\n" for line in shown).encode()
    while text:
        text = text[os.write(to, text) :]


def _announce(message: str) -> None:
    _print("launch", [message.encode()], _STANDARD_ERROR)
