"""Horovod's launcher, told the interface and the GPUs that the user has chosen for all hosts."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, NoReturn, Optional

from horovod.runner import gloo_run, launch
from horovod.runner.common.util import env
from horovod.runner.driver import driver_service

_LAUNCHERS = Path(__file__).resolve().parent / "launchers"
_find_interfaces = driver_service.get_common_interfaces
_gloo_starter = gloo_run._exec_command_fn
_become = os.execve


def interfaces(
    settings: Any, hosts: Sequence[str], remote_hosts: Sequence[str], cache: Any
) -> Sequence[str]:
    """The one in ``NIC``; Horovod's own option for it fails where all ranks are on this host."""
    chosen = os.environ.get("NIC")
    if chosen and remote_hosts:
        return [chosen]
    found: Sequence[str] = _find_interfaces(settings, hosts, remote_hosts, cache)
    return found


def remote_command(
    command: str, host: str, port: Optional[int] = None, identity_file: Optional[str] = None
) -> str:
    """A rank of Gloo on another host, in a session that notices when one of the hosts is cut off.

    Args:
        command: quoted once, for this host's shell.
        host: where it runs.
        port: of the ssh server, if it is not the usual one.
        identity_file: of ssh.
    """
    options = ["-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no"]
    options += ["-p", str(port)] if port else []
    options += ["-i", identity_file] if identity_file else []
    seconds, (script,) = os.environ["HOST_TIMEOUT"], shlex.split(command)
    guard = shlex.join(["bash", str(_LAUNCHERS / "remote-guard"), seconds, "bash", "-c", script])
    return shlex.join(["bash", str(_LAUNCHERS / "remote-shell"), *options, host, guard])


def starter(settings: Any) -> Callable[..., tuple[int, float]]:
    """Horovod's, of one rank; says on which host a rank has failed, before others do so as well."""
    start = _gloo_starter(settings)

    def run(command: str, slot: Any, events: Any) -> tuple[int, float]:
        status, moment = start(command, slot, events)
        if status != 0:
            print(f"rank {slot.rank} on {slot.hostname} has ended with status {status}")
        return status, moment

    return run


def start_mpirun(path: Any, argv: Any, env: Any) -> NoReturn:
    """Become ``mpirun``, and not a shell that waits for it and keeps the signals meant for it.

    A job whose ``horovodrun`` was ended would go on without it.
    """
    *options, command = argv
    _become(path, [*options, f"exec {command}"], env)


def main() -> None:
    """Run it with these changes."""
    os.execve = start_mpirun
    driver_service.get_common_interfaces = interfaces
    gloo_run.get_remote_command = remote_command
    gloo_run._exec_command_fn = starter
    # It sends every variable to other hosts but this one.
    if "SLURM_JOB_ID" not in os.environ:
        env.IGNORE_REGEXES.discard(".*CUDA_VISIBLE_DEVICES")
    sys.argv[0] = "horovodrun"
    try:
        launch.run_commandline()
    except (RuntimeError, ValueError) as error:
        # Of ranks, which have said why, and of hosts: Horovod prints the reason of each.
        print(f"horovodrun: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2 if "via ssh" in str(error) else 1)


# Horovod's own processes import this file, too.
if __name__ == "__main__":
    main()
