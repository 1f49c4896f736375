"""The other hosts of a job: how a command runs there, and what they say before the job starts.

    python -m parallel.launch.ssh INTERFACE ADDRESS PORT [named]

runs on every host first. So a host that ssh does not reach, that lacks the project or the
interface, or that does not reach the launcher on it, is one line that names the host, and no job
that waits. Each host finds its own address on the interface: its name may stand for another one.

Every user of a host can read the arguments of all processes. So launchers send the values of
environment variables on the standard input of ssh, and send only variables that a library of this
project or the project itself reads: a shell has passwords in others. ``SEND_VARIABLES`` names more.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple, Optional

from parallel.host_lists import address_on
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
_STOP_SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    # By which run.sh asks mpirun to stop.
    *(signal.SIGUSR1, signal.SIGUSR2),
)
# How ``run_program`` begins its line.
_OWN_ERROR = "error: "

_NAMED = "SEND_VARIABLES"
CHOICES = (
    *("DATASET", "NETWORK", "LOSS", "BATCH_SIZE", "LR", "SAMPLE_RATIO", "MAX_UPDATE"),
    "MODELS_ROOT",
)
"""Choices of a run, which config.sh reads."""
_READ = (
    *("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "NIC", "PROGRESS", *CHOICES),
    *("NVIDIA_TF32_OVERRIDE", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"),
)
_READ_PREFIXES = (
    *("MXNET_", "DMLC_", "PS_", "HOROVOD_", "GLOO_", "NCCL_", "OMPI_MCA_", "PMIX_MCA_", "UCX_"),
    *("FI_", "CUDA_", "CUBLAS_", "CUDNN_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_"),
    *("ONEDNN_", "NUMBA_", "OPENCV_", "PYTHON", "TOOLKIT_"),
)
# Slurm gives each host of a job a value of its own.
_GPUS, _OF_SLURM = "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

RECEIVER = (
    *("bash", "--norc", "-c"),
    'while IFS= read -r -d "" pair && [[ $pair ]]; do export "$pair"; done; SHLVL=9; exec "$@"',
    "bash",
)
"""Words before a command on another host: it gets the variables with which its input starts.

Below level 2 (``SHLVL``), ``bash -c`` in a session of ssh reads ~/.bashrc, which may change
``PATH``.
"""


def command(host: str, words: Iterable[str]) -> list[str]:
    """The local command that runs words on a host, in this folder, without a password.

    Its standard input has to start with ``first_input``.
    """
    line = f"cd {shlex.quote(str(Path.cwd()))} && exec {shlex.join([*RECEIVER, *words])}"
    return [*CLIENT, *destination(host), line]


def first_input(more: Mapping[str, str]) -> bytes:
    """Return the start of the input of ``command``: the variables that the words get there.

    Args:
        more: variables besides those of this process that other hosts get.
    """
    own = variables_with_programs()
    sent = {name: own[name] for name in variables_to_send(own)}
    return packed({**sent, **more})


def variables_to_send(own: Mapping[str, str]) -> list[str]:
    """Return the names of those variables of this process that other hosts get.

    Raises:
        ConfigError: ``SEND_VARIABLES`` is wrong.
    """
    named = own.get(_NAMED, "").replace(",", " ").split()
    for name in named:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{_NAMED}: {name.partition('=')[0][:80]!r} is not the name of a variable; give "
                f"names without values, as in {_NAMED}=WANDB_API_KEY,HF_HOME"
            )
        if name not in own:
            raise ConfigError(f"{_NAMED}: {name[:80]} is not set; set it, or leave it out")
    read = {name for name in own if name in _READ or name.startswith(_READ_PREFIXES)}
    if _OF_SLURM in own:
        read.discard(_GPUS)
    return sorted({*filter(_NAME.fullmatch, read), *named})


def packed(values: Mapping[str, str]) -> bytes:
    """Return variables in the form in which ``RECEIVER`` reads them."""
    return b"".join(os.fsencode(f"{name}={value}\0") for name, value in values.items()) + b"\0"


def destination(login: str) -> list[str]:
    """Return a client's words for a host, which is a name or address, or one of them and a port.

    ``host_lists`` takes none that the client would take for an option.
    """
    host, _, port = login.partition(":")
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
    seconds: Optional[float] = None,
) -> dict[str, Answer]:
    """Run a client for each host, all at the same time, and return their answers.

    A signal to stop ends the clients and the program.

    Args:
        commands: the words of each client, by host.
        given: its standard input, by host.
        seconds: after these a client is killed, which counts as no connection; None: never.

    Raises:
        ConfigError: this machine has no ssh.
    """
    stopped: list[int] = []

    async def run_all() -> list[Answer]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            if not stopped:
                stopped.append(number)
                task.cancel()

        for number in _STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, stop, number)
        clients = (
            _answer(words, given.get(host, b""), seconds) for host, words in commands.items()
        )
        return await asyncio.gather(*clients)

    try:
        return dict(zip(commands, asyncio.run(run_all())))
    except asyncio.CancelledError:
        raise SystemExit(_STATUS_OF_SIGNALS + stopped[0]) from None


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
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    # Its proxies belong to the group.
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        for file in (output, errors):
            file.seek(0)
        said = errors.read().decode("utf-8", "replace").strip() or "no reason given"
        return Answer(status, output.read(), said.splitlines()[-1].strip())


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


def failures(
    hosts: Iterable[str], seconds: float = ANSWER_SECONDS, words: Sequence[str] = CLIENT
) -> dict[str, ConfigError]:
    """Connect to hosts and run a command there that does nothing; return those that fail, and why.

    A host has answered when the command has ended: a server may stop at any step before.

    Args:
        hosts: names, as ssh knows them.
        seconds: for each host, from the connection to the end of the command.
        words: of a client, see ``client``.
    """
    commands = {host: [*words, *destination(host), "true"] for host in hosts}
    ended = answers(commands, {}, seconds).items()
    return {host: unreachable(host, answer.reason) for host, answer in ended if answer.status}


def check(
    hosts: Iterable[str], seconds: float = ANSWER_SECONDS, words: Sequence[str] = CLIENT
) -> None:
    """Connect to hosts as ``failures`` does; raise the error of the first that fails."""
    for error in failures(hosts, seconds, words).values():
        raise error


def ask(hosts: Iterable[str], interface: str, is_named: bool) -> dict[str, str]:
    """Have every host report its IPv4 address on the interface of the job, all at the same time.

    Args:
        hosts: names, as ssh knows them.
        interface: its name.
        is_named: true if the host's own name has to stand for this address there.

    Raises:
        ConfigError: with the first host that does not report, and why.
    """
    address = address_on(interface)
    # Nothing is accepted: the queue has to have room for the hosts beside strangers' connections.
    with socket.create_server((address, 0), backlog=socket.SOMAXCONN) as launcher:
        words = [sys.executable, "-m", __name__, interface, address]
        words += [str(launcher.getsockname()[1]), *(["named"] if is_named else [])]
        commands = {host: command(host, words) for host in hosts}
        given = dict.fromkeys(commands, first_input({}))
        ended = answers(commands, given, ANSWER_SECONDS)
    return {host: _reported(host, answer) for host, answer in ended.items()}


def unreachable(host: str, reason: str) -> ConfigError:
    """The error of a host to which ssh has no connection, and the remedy."""
    return ConfigError(
        f"host {host}: no connection by ssh ({reason}); it has to work without a question: "
        f"{shlex.join(['ssh', '-oBatchMode=yes', *destination(host), 'true'])}"
    )


def _reported(host: str, answer: Answer) -> str:
    if answer.status == STATUS_OF_SSH:
        raise unreachable(host, answer.reason)
    if answer.reason.startswith(_OWN_ERROR):
        raise ConfigError(f"host {host}: {answer.reason.removeprefix(_OWN_ERROR)}")
    # A login shell may print lines first.
    found = re.search(rb"^((?:\d{1,3}\.){3}\d{1,3})\n\Z", answer.output, re.MULTILINE)
    if answer.status or found is None:
        raise ConfigError(
            f"host {host}: {answer.reason}; every host needs the project and its "
            f"environment in the same folders as here, {Path.cwd()} and {sys.prefix}"
        )
    return found[1].decode()


def main() -> int:
    """Report this host's address on an interface, which reaches the launcher."""
    name, address, port, *is_named = sys.argv[1:]
    own = address_on(name)
    try:
        socket.create_connection((address, int(port)), _REACH_SECONDS, (own, 0)).close()
    except OSError as error:
        raise ConfigError(
            f"its address {own} on {name} does not reach the launcher's, {address} "
            f"({error.strerror or error}); give -i the network that all hosts are on"
        ) from None
    named = ""
    with suppress(OSError):
        named = socket.gethostbyname(socket.gethostname())
    if is_named and named != own:
        raise ConfigError(
            "the members of groups connect at the address of the host's own name, there "
            f"{named or 'none'}, which is not {own} on -i {name}; change it in the hosts files"
        )
    print(own)
    return 0


if __name__ == "__main__":
    run_program(main)
