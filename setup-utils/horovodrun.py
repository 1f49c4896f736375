"""Horovod's launcher, told the interface and the GPUs that the user has chosen for all hosts.

It gets lists of hosts that it can use: the reader of all launchers has read them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, NoReturn, Optional

from horovod.runner import gloo_run, launch
from horovod.runner.common.util import env
from horovod.runner.driver import driver_service
from typing_extensions import override

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parallel.host_lists import read_file, read_list, slots_by_host
from parallel.launch import ssh
from parallel.launch.network_interface import is_own_name
from runtime.command_line import Parser
from runtime.errors import USER_ERROR_STATUS, ConfigError, UserError
from runtime.process.terminal import print_line

_LAUNCHERS = Path(__file__).resolve().parent / "launchers"
_find_interfaces = driver_service.get_common_interfaces
_gloo_starter = gloo_run._exec_command_fn
_parse = launch.parse_args
_check_ssh = launch._check_all_hosts_ssh_successful
_become = os.execve
# As Horovod calls ssh, and without questions.
_SSH_OPTIONS = ("-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no")


def interfaces(
    settings: Any, hosts: Sequence[str], remote_hosts: Sequence[str], cache: Any
) -> Sequence[str]:
    """The one in ``NIC``; Horovod's own option for it fails where all ranks are on this host."""
    chosen = os.environ.get("NIC")
    if chosen and remote_hosts:
        return [chosen]
    found: Sequence[str] = _find_interfaces(settings, hosts, remote_hosts, cache)
    return found


class Options(Parser):
    """Horovod's options: a mistake is one line instead of pages of usage, names are not shortened.

    One short name is a name here, ``--check``, which InsightFace's README types.
    """

    @override
    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        more = ("--check",) if "--check-build" in names else ()
        return super().add_argument(*names, *more, **settings)


def parse_args() -> Any:
    """Parse the command line, and read the list of hosts.

    Raises:
        ConfigError: an option is wrong, there is no program to start, or the list cannot be used
            or has fewer slots than there are ranks.
        DataError: the file of hosts cannot be used.
    """
    try:
        arguments = _parse()
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from None
    if not arguments.command:
        raise ConfigError(
            "there is no program to start; write it after the options, as in horovodrun -np 2 bash "
            "config.sh"
        )
    if arguments.num_proc is not None and arguments.num_proc < 1:
        raise ConfigError(f"-np {arguments.num_proc} is not a number of ranks; give one from 1 on")
    if arguments.hosts is not None:
        entries, name = read_list(arguments.hosts), f"-H {arguments.hosts[:80]}"
    elif arguments.hostfile is not None:
        entries, name = read_file(Path(arguments.hostfile)), f"--hostfile {arguments.hostfile}"
    else:
        return arguments
    counts = {host: count or 1 for host, count in slots_by_host(entries, is_own_name).items()}
    slots, ranks = sum(counts.values()), arguments.num_proc
    if ranks is not None and ranks > slots:
        raise ConfigError(
            f"-np {ranks} is more ranks than the {slots} slots of {name}; add slots, or start fewer"
        )
    arguments.hosts = ",".join(f"{host}:{count}" for host, count in counts.items())
    arguments.hostfile = None
    return arguments


def check_ssh(
    hosts: Sequence[str], port: Optional[int], identity_file: Optional[str], fn_cache: Any
) -> bool:
    """Check, as Horovod does but in a limited time and every time, that hosts answer.

    Raises:
        ConfigError: with the first that does not.
    """
    if env.is_kubeflow_mpi():
        # Its own program reaches hosts.
        return bool(_check_ssh(hosts, port, identity_file, fn_cache=fn_cache))
    seconds = int(os.environ["HOST_TIMEOUT"])
    with ssh.exits_on_signals():
        ssh.check(hosts, seconds, ssh.client(seconds, *_options(port, identity_file)))
    return True


def _options(port: Optional[int], identity_file: Optional[str]) -> list[str]:
    """Options of ssh that the user has given, and Horovod's."""
    options = [*_SSH_OPTIONS]
    options += ["-p", str(port)] if port else []
    options += ["-i", identity_file] if identity_file else []
    return options


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
    options = _options(port, identity_file)
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
    launch.parse_args = parse_args
    launch.argparse = SimpleNamespace(**{**vars(argparse), "ArgumentParser": Options})
    launch._check_all_hosts_ssh_successful = check_ssh
    driver_service.get_common_interfaces = interfaces
    gloo_run.get_remote_command = remote_command
    gloo_run._exec_command_fn = starter
    # It sends every variable to other hosts but this one.
    if "SLURM_JOB_ID" not in os.environ:
        env.IGNORE_REGEXES.discard(".*CUDA_VISIBLE_DEVICES")
    sys.argv[0] = "horovodrun"
    try:
        launch.run_commandline()
    except UserError as error:
        print_line(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR_STATUS)
    except (RuntimeError, ValueError) as error:
        # An error of ranks, which have printed the reason.
        print_line(f"horovodrun: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(1)


# Horovod's own processes import this file, too.
if __name__ == "__main__":
    main()
