"""The other hosts of a job: how a command runs there, and what they say before the job starts.

    python -m parallel.launch.ssh INTERFACE ADDRESS PORT

runs on every host first. So a host that ssh does not reach, that lacks the project or the
interface, or that does not reach the launcher on it, is one line that names the host, and no job
that waits. Each host finds its own address on the interface: its name may stand for another one.
"""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from parallel.launch.network_interface import NetworkInterface
from runtime import environment
from runtime.errors import ConfigError, run_program

STATUS_OF_SSH = 255
"""Of the client, if there is no connection."""

CLIENT = (
    *("ssh", "-oBatchMode=yes", "-oConnectTimeout=10"),
    *("-oServerAliveInterval=5", "-oServerAliveCountMax=3"),
)
"""The client, which asks for no password; ServerAlive notices a connection that is gone."""
_ANSWER_SECONDS = 60
_REACH_SECONDS = 10
# How ``run_program`` begins its line.
_OWN_ERROR = "error: "
# The environment variables that are sent to other machines; on this one all are.
_SENT = (
    *("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_TF32_OVERRIDE"),
)
_SENT_PREFIXES = ("MXNET_", "HOROVOD_", "OMP_", "NUMBA_", "NCCL_", "PS_")


class HostReport(NamedTuple):
    """What a host says of itself."""

    address: str
    """Its IPv4 address on the interface of the job."""
    named: str
    """The address for which its own name stands there; empty if for none."""


def command(host: str, words: Iterable[str], variables: Mapping[str, str]) -> list[str]:
    """The local command that runs words on a host, in this folder, without a password."""
    sent = {
        name: value
        for name, value in variables_with_programs().items()
        if name in _SENT or name.startswith(_SENT_PREFIXES)
    }
    settings = [f"{name}={value}" for name, value in {**sent, **variables}.items()]
    line = f"cd {shlex.quote(str(Path.cwd()))} && exec env {shlex.join([*settings, *words])}"
    return [*client(host), line]


def client(login: str) -> list[str]:
    """Return the client's command up to the host, which is an address or ``address:port``."""
    host, _, port = login.partition(":")
    return [*CLIENT, *(("-p", port) if port else ()), host]


def host_of(login: str) -> str:
    """Return the host of ``address:port``."""
    return login.partition(":")[0]


def variables_with_programs() -> dict[str, str]:
    """This process's variables, with the programs of its environment first in ``PATH``.

    The environment need not be active where its Python is called by its path.
    """
    variables = environment.variables()
    folder, path = str(Path(sys.executable).parent), variables.get("PATH", "")
    if path.split(":")[0] != folder:
        variables["PATH"] = f"{folder}:{path}" if path else folder
    return variables


def ask(hosts: Sequence[str], interface: NetworkInterface) -> dict[str, HostReport]:
    """Have every host report, all at the same time.

    Raises:
        ConfigError: with the first host that does not, and why.
    """
    with socket.create_server((interface.address, 0), backlog=len(hosts)) as launcher:
        words = (sys.executable, "-m", __name__, *interface, str(launcher.getsockname()[1]))
        running = {
            host: subprocess.Popen(
                command(host, words, {}), text=True, errors="replace",
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for host in hosts
        }  # fmt: skip
        try:
            return {host: _report(host, process) for host, process in running.items()}
        finally:
            for process in running.values():
                process.kill()
                process.communicate()


def last_line(errors: str) -> str:
    """What a command on another host, or ssh itself, has said at last."""
    return errors.strip().splitlines()[-1].strip() if errors.strip() else "no reason given"


def unreachable(host: str, reason: str) -> ConfigError:
    """The error of a host to which ssh has no connection, and the remedy."""
    return ConfigError(
        f"host {host}: no connection by ssh ({reason}); it has to work without a question: "
        f"{shlex.join(['ssh', '-oBatchMode=yes', *client(host)[len(CLIENT) :], 'true'])}"
    )


def _report(host: str, process: subprocess.Popen[str]) -> HostReport:
    try:
        output, errors = process.communicate(timeout=_ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"host {host} gives no answer in {_ANSWER_SECONDS} s; look there"
        ) from None
    reason = last_line(errors)
    if process.returncode == STATUS_OF_SSH:
        raise unreachable(host, reason)
    if reason.startswith(_OWN_ERROR):
        raise ConfigError(f"host {host}: {reason.removeprefix(_OWN_ERROR)}")
    if process.returncode:
        raise ConfigError(
            f"host {host}: {reason}; every host needs the project and its "
            f"environment in the same folders as here, {Path.cwd()} and {sys.prefix}"
        )
    try:
        # What its shell prints comes before.
        address, named = json.loads(output.splitlines()[-1])
        socket.inet_aton(address)
    except (IndexError, OSError, TypeError, ValueError):
        raise ConfigError(
            f"host {host} does not answer with its address but with {output[-80:]!r}; is the "
            "project there another version?"
        ) from None
    return HostReport(address, str(named))


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
    print(json.dumps(HostReport(own.address, named)))
    return 0


if __name__ == "__main__":
    run_program(main)
