"""The other hosts of a job: how a command runs there, and what they say before the job starts.

    python -m parallel.launch.ssh INTERFACE ADDRESS PORT

runs on every host first. So a host that ssh does not reach, that lacks the project or the
interface, or that does not reach the launcher on it, is one line that names the host, and no job
that waits. Each host finds its own address on the interface: its name may stand for another one.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Optional

from parallel.host_lists import is_name
from parallel.launch import variables
from parallel.launch.network_interface import NetworkInterface
from runtime import environment
from runtime.errors import ConfigError, run_program

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
_POLL_SECONDS = 0.5
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


class Sessions:
    """Running clients of ssh; at the end of the context all of them are killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Optional[list[subprocess.Popen[Any]]] = []

    def __enter__(self) -> Sessions:
        """Accept clients from here on."""
        return self

    def start(self, words: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a client in a process group of its own; ``options`` are those of ``Popen``.

        Raises:
            ConfigError: this machine has no ssh, or the context has ended.
        """
        with self._lock:
            if self._running is None:
                raise ConfigError("ssh is not started any more: the program ends")
            try:
                self._running.append(subprocess.Popen(words, start_new_session=True, **options))
            except OSError as error:
                raise ConfigError(
                    f"the program {words[0]} cannot be started ({error.strerror}); install it (ssh "
                    "is OpenSSH's client)"
                ) from None
            return self._running[-1]

    def call(
        self, words: Sequence[str], given: bytes = b"", seconds: Optional[float] = None
    ) -> subprocess.CompletedProcess[Any]:
        """Run a client to its end; its output is bytes, its errors are text.

        Args:
            words: its command line.
            given: its standard input.
            seconds: that it may take; None for any number.

        Raises:
            ConfigError: as ``start``.
            TimeoutError: it has taken longer, and is killed.
        """
        # Files: what ssh has left running in the background would keep a pipe open.
        with ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(given)
            files[0].seek(0)
            process = self.start(words, stdin=files[0], stdout=files[1], stderr=files[2])
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise TimeoutError(f"no answer in {seconds:.0f} s") from None
            for file in files[1:]:
                file.seek(0)
            output, errors = (file.read() for file in files[1:])
            said: Any = errors.decode("utf-8", "replace")
            return subprocess.CompletedProcess(words, status, output, said)

    def __exit__(self, *_: object) -> None:
        """Kill the clients that are left, and their proxies."""
        with self._lock:
            running, self._running = self._running or [], None
        for process in running:
            if process.poll() is None:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


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
    hosts: Sequence[str], seconds: float, words: Sequence[str] = CLIENT
) -> Iterator[tuple[str, ConfigError]]:
    """Connect to hosts and run a command there that does nothing; yield those that fail, and why.

    A host has answered when the command has ended: a server may stop at any step before.

    Args:
        hosts: names, as ssh knows them.
        seconds: for each host, from the connection to the end of the command.
        words: of a client, see ``client``.
    """
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool, Sessions() as sessions:

        def failure(host: str) -> Optional[ConfigError]:
            try:
                answer = sessions.call([*words, *destination(host), "true"], seconds=seconds)
            except TimeoutError as error:
                return unreachable(host, str(error))
            return unreachable(host, last_line(answer.stderr)) if answer.returncode else None

        host_of = {pool.submit(failure, host): host for host in hosts}
        waiting = set(host_of)
        while waiting:
            # For short times: a signal that comes just before a wait is handled only after it.
            done, waiting = wait(waiting, _POLL_SECONDS, FIRST_COMPLETED)
            for future in done:
                if (error := future.result()) is not None:
                    yield host_of[future], error


def check(
    hosts: Sequence[str], seconds: float = ANSWER_SECONDS, words: Sequence[str] = CLIENT
) -> None:
    """Connect to hosts as ``failures`` does; raises the error of the first that fails."""
    for _, error in failures(hosts, seconds, words):
        raise error


def ask(hosts: Sequence[str], interface: NetworkInterface) -> dict[str, tuple[str, str]]:
    """Have every host report, all at the same time.

    Returns:
        For each host its IPv4 address on the interface of the job, and the address for which its
        own name stands there; the latter is empty if for none.

    Raises:
        ConfigError: with the first host that does not, and why.
    """
    # Nothing is accepted: the queue has to have room for the hosts beside strangers' connections.
    address = (interface.address, 0)
    with (
        ThreadPoolExecutor(_MOST_AT_ONCE) as pool,
        Sessions() as sessions,
        socket.create_server(address, backlog=socket.SOMAXCONN) as launcher,
    ):
        words = (sys.executable, "-m", __name__, *interface, str(launcher.getsockname()[1]))
        reports = pool.map(lambda host: _report(sessions, host, words), hosts)
        return dict(zip(hosts, reports))


def last_line(errors: str) -> str:
    """What a command on another host, or ssh itself, has said at last."""
    return errors.strip().splitlines()[-1].strip() if errors.strip() else "no reason given"


def unreachable(host: str, reason: str) -> ConfigError:
    """The error of a host to which ssh has no connection, and the remedy."""
    return ConfigError(
        f"host {host}: no connection by ssh ({reason}); it has to work without a question: "
        f"{shlex.join(['ssh', '-oBatchMode=yes', *destination(host), 'true'])}"
    )


def _report(sessions: Sessions, host: str, words: Sequence[str]) -> tuple[str, str]:
    try:
        answer = sessions.call(command(host, words), first_input({}), ANSWER_SECONDS)
    except TimeoutError as error:
        raise unreachable(host, str(error)) from None
    reason, output = last_line(answer.stderr), answer.stdout.decode("utf-8", "replace")
    if answer.returncode == STATUS_OF_SSH:
        raise unreachable(host, reason)
    if reason.startswith(_OWN_ERROR):
        raise ConfigError(f"host {host}: {reason.removeprefix(_OWN_ERROR)}")
    if answer.returncode:
        raise ConfigError(
            f"host {host}: {reason}; every host needs the project and its "
            f"environment in the same folders as here, {Path.cwd()} and {sys.prefix}"
        )
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
