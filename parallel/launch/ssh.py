"""The other hosts of a job: how a command runs there, and what they say before the job starts.

    python -m parallel.launch.ssh INTERFACE ADDRESS PORT

runs on every host first. So a host that ssh does not reach, that lacks the project or the
interface, or that does not reach the launcher on it, is one line that names the host, and no job
that waits. Each host finds its own address on the interface: its name may stand for another one.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType
from typing import Any, NamedTuple, NoReturn, Optional, TypeVar

from parallel.host_lists import is_name
from parallel.launch import variables
from parallel.launch.network_interface import NetworkInterface
from runtime import environment
from runtime.errors import ConfigError, run_program

_Read = TypeVar("_Read")
STATUS_OF_SSH = 255
"""Of the client, if there is no connection."""
_STATUS_OF_SIGNALS = 128


def client(seconds: int, *options: str) -> list[str]:
    """Return the words that start a client, which asks for no password.

    Args:
        seconds: for the connection.
        options: of ssh; before those of the user's configuration.
    """
    # ServerAlive notices a connection that is gone. A master of connections would stay behind.
    alive = ("-oServerAliveInterval=5", "-oServerAliveCountMax=3", "-oControlMaster=no")
    return ["ssh", "-oBatchMode=yes", f"-oConnectTimeout={seconds}", *alive, *options]


CLIENT = tuple(client(10))
"""A client for hosts that are expected to answer soon."""
ANSWER_SECONDS = 45.0
"""For a host to log in and start a command."""
_REACH_SECONDS = 10
# Fewer than Open MPI starts at once.
_MOST_AT_ONCE = 64
_STOP_SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    # By which run.sh asks mpirun to stop.
    *(signal.SIGUSR1, signal.SIGUSR2),
)
# How ``run_program`` begins its line.
_OWN_ERROR = "error: "


def command(host: str, words: Iterable[str]) -> list[str]:
    """The local command that runs words on a host, in this folder, without a password.

    Its standard input has to start with ``first_input``.
    """
    line = f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join([*variables.RECEIVER, *words])}"
    return [*CLIENT, *destination(host), line]


def first_input(more: Mapping[str, str]) -> bytes:
    """Return the start of the input of ``command``: the variables that the words get there.

    Args:
        more: variables besides those of this process that other hosts get.
    """
    own = variables_with_programs()
    sent = {name: own[name] for name in variables.names(own)}
    return variables.packed({**sent, **more})


def destination(login: str) -> list[str]:
    """Return a client's words for a host, which is a name or address, or one of them and a port.

    Raises:
        ConfigError: the host is none, such as one that the client would take for an option.
    """
    host, _, port = login.partition(":")
    if not is_name(host):
        raise ConfigError(f"host {login[:80]!r} is not a name or an IPv4 address; correct it")
    return ["-p", port, host] if port else [host]


def variables_with_programs() -> dict[str, str]:
    """This process's variables, with the programs of its environment first in ``PATH``.

    The environment need not be active where its Python is called by its path.
    """
    variables = environment.variables()
    folder, path = str(Path(sys.executable).parent), variables.get("PATH", "")
    if path.split(":")[0] != folder:
        variables["PATH"] = f"{folder}:{path}" if path else folder
    return variables


class Answer(NamedTuple):
    """The end of a client."""

    status: int
    output: bytes
    reason: str
    """The last line of its errors."""


def answers(
    commands: Mapping[str, Sequence[str]],
    given: Mapping[str, bytes],
    seconds: Optional[float],
    read: Callable[[str, Answer], _Read],
) -> dict[str, _Read]:
    """Run a client for each host, all at the same time; when one of them fails, all are killed.

    Args:
        commands: the words of each client, by host.
        given: its standard input, by host.
        seconds: after these a client is killed, which counts as no connection; None: never.
        read: is called with a host and its answer; an exception of it ends all.

    Returns:
        What ``read`` has returned, by host.

    Raises:
        ConfigError: this machine has no ssh.
    """

    async def run_all() -> dict[str, _Read]:
        free = asyncio.Semaphore(_MOST_AT_ONCE)

        async def run(host: str) -> _Read:
            async with free:
                return read(host, await _answer(commands[host], given.get(host, b""), seconds))

        return dict(zip(commands, await asyncio.gather(*map(run, commands))))

    return asyncio.run(run_all())


async def _answer(words: Sequence[str], given: bytes, seconds: Optional[float]) -> Answer:
    # Files: what ssh has left running in the background would keep a pipe open.
    with TemporaryFile() as source, TemporaryFile() as output, TemporaryFile() as errors:
        source.write(given)
        source.seek(0)
        process = await start(words, stdin=source, stdout=output, stderr=errors)
        try:
            status = await asyncio.wait_for(process.wait(), seconds)
        except asyncio.TimeoutError:
            return Answer(STATUS_OF_SSH, b"", f"no answer in {seconds:.0f} s")
        finally:
            await kill(process)
        for file in (output, errors):
            file.seek(0)
        return Answer(status, output.read(), last_line(errors.read().decode("utf-8", "replace")))


async def start(words: Sequence[str], **options: Any) -> asyncio.subprocess.Process:
    """Start a client in a process group of its own.

    Raises:
        ConfigError: this machine has no ssh.
    """
    try:
        return await asyncio.create_subprocess_exec(*words, start_new_session=True, **options)
    except OSError as error:
        raise ConfigError(
            f"the program {words[0]} cannot be started ({error.strerror}); install it (ssh is "
            "OpenSSH's client)"
        ) from None


async def kill(process: asyncio.subprocess.Process) -> None:
    """Kill a client and its proxies, unless it has ended."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@contextmanager
def exits_on_signals() -> Iterator[None]:
    """Turn the first signal to stop into ``SystemExit``, so that contexts end; ignore others."""

    def end(number: int, _: Optional[FrameType]) -> NoReturn:
        for other in handlers:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(_STATUS_OF_SIGNALS + number)

    handlers = {
        number: signal.signal(number, end)
        for number in _STOP_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def failures(
    hosts: Iterable[str], seconds: float, words: Sequence[str] = CLIENT
) -> dict[str, ConfigError]:
    """Connect to hosts and run a command there that does nothing; return those that fail, and why.

    A host has answered when the command has ended: a server may stop at any step before.

    Args:
        hosts: names, as ssh knows them.
        seconds: for each host, from the connection to the end of the command.
        words: of a client, see ``client``.
    """
    commands = {host: [*words, *destination(host), "true"] for host in hosts}
    ended = answers(commands, {}, seconds, lambda _, answer: answer)
    return {host: unreachable(host, one.reason) for host, one in ended.items() if one.status}


def check(
    hosts: Iterable[str], seconds: float = ANSWER_SECONDS, words: Sequence[str] = CLIENT
) -> None:
    """Connect to hosts as ``failures`` does; raise the error of the first that fails."""

    def refuse(host: str, answer: Answer) -> None:
        if answer.status:
            raise unreachable(host, answer.reason)

    answers({host: [*words, *destination(host), "true"] for host in hosts}, {}, seconds, refuse)


def ask(hosts: Iterable[str], interface: NetworkInterface) -> dict[str, tuple[str, str]]:
    """Have every host report, all at the same time.

    Returns:
        For each host its IPv4 address on the interface of the job, and the address for which its
        own name stands there; the latter is empty if for none.

    Raises:
        ConfigError: with the first host that does not, and why.
    """
    # Nothing is accepted: the queue has to have room for the hosts beside strangers' connections.
    with socket.create_server((interface.address, 0), backlog=socket.SOMAXCONN) as launcher:
        words = (sys.executable, "-m", __name__, *interface, str(launcher.getsockname()[1]))
        commands = {host: command(host, words) for host in hosts}
        given = dict.fromkeys(commands, first_input({}))
        return answers(commands, given, ANSWER_SECONDS, _report)


def last_line(errors: str) -> str:
    """What a command on another host, or ssh itself, has said at last."""
    return errors.strip().splitlines()[-1].strip() if errors.strip() else "no reason given"


def unreachable(host: str, reason: str) -> ConfigError:
    """The error of a host to which ssh has no connection, and the remedy."""
    return ConfigError(
        f"host {host}: no connection by ssh ({reason}); it has to work without a question: "
        f"{shlex.join(['ssh', '-oBatchMode=yes', *destination(host), 'true'])}"
    )


def _report(host: str, answer: Answer) -> tuple[str, str]:
    if answer.status == STATUS_OF_SSH:
        raise unreachable(host, answer.reason)
    if answer.reason.startswith(_OWN_ERROR):
        raise ConfigError(f"host {host}: {answer.reason.removeprefix(_OWN_ERROR)}")
    if answer.status:
        raise ConfigError(
            f"host {host}: {answer.reason}; every host needs the project and its "
            f"environment in the same folders as here, {Path.cwd()} and {sys.prefix}"
        )
    output = answer.output.decode("utf-8", "replace")
    # A login shell may print lines first.
    found = re.search(r"^((?:\d{1,3}\.){3}\d{1,3}) ([\d.]*)\n\Z", output, re.MULTILINE)
    if found is None:
        raise ConfigError(
            f"host {host} does not answer with its address but with {output[-80:]!r}; is the "
            "project there another version?"
        )
    return found[1], found[2]


def main() -> int:
    """Report this host's address on an interface, which reaches the launcher."""
    name, address, port = sys.argv[1:]
    own = NetworkInterface.find(name)
    try:
        socket.create_connection((address, int(port)), _REACH_SECONDS, (own.address, 0)).close()
    except OSError as error:
        raise ConfigError(
            f"its address {own.address} on {name} does not reach the launcher's, {address} "
            f"({error.strerror or error})"
        ) from None
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = ""
    print(own.address, named)
    return 0


if __name__ == "__main__":
    run_program(main)
