"""Horovod's launcher, told the interface and the GPUs that the user has chosen for all hosts.

It gets lists of hosts that it can use: the reader of all launchers has read them. Values of
variables are no arguments of its processes, which every user of a host can read. Its elastic mode
is closed, and its search for interfaces, for which each host would run what comes to a port.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, NoReturn, Optional

import psutil
import yaml  # type: ignore[import-untyped]
from horovod.runner import gloo_run, launch
from horovod.runner.common.util import env
from horovod.runner.driver import driver_service
from horovod.runner.http import http_server
from typing_extensions import override

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parallel.host_lists import address_on, is_own_name, read_file, read_list, slots_by_host
from parallel.launch import ssh
from runtime.command_line import Parser
from runtime.errors import USER_ERROR_STATUS, ConfigError, UserError, print_line
from runtime.loopback import hear_this_user, loopback_variables

_LAUNCHERS = Path(__file__).resolve().parent / "launchers"
_gloo_starter = gloo_run._exec_command_fn
_start_ranks = gloo_run.launch_gloo
_parse = launch.parse_args
_become = os.execve
# Options of the elastic mode; a file of options has none of them.
_ELASTIC = (
    *("min_num_proc", "max_num_proc", "slots", "elastic_timeout", "reset_limit"),
    *("cooldown_range", "host_discovery_script"),
)
_CLOSED = (
    "Horovod's elastic and run-function modes are closed here, because whoever reaches their port "
    "runs programs as you (CVE-2024-10190); to start again after a failure, type: bash run.sh "
    "--restarts 10"
)


def interfaces(
    is_gloo: bool, settings: Any, hosts: Sequence[str], remote_hosts: Sequence[str], cache: Any
) -> Sequence[str]:
    """Return the interfaces of all traffic between ranks; Open MPI finds them by itself.

    Raises:
        ConfigError: this host does not have an interface that the user has chosen, or Gloo, which
            takes one, has none by which the other hosts are known to be reached.
    """
    for name in settings.nics or ():
        address_on(name, "--network-interface")
    if not remote_hosts:
        os.environ.update(loopback_variables())
        return ["lo"]
    if settings.nics or os.environ.get("NIC"):
        return settings.nics or [os.environ["NIC"]]
    return [_interface_to(remote_hosts[0])] if is_gloo else []


def _interface_to(host: str) -> str:
    """Return the interface by which this host reaches another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: the system chooses the address from which it would.
            probe.connect((host, 9))
        except OSError as error:
            raise ConfigError(
                f"host {host}: no address for Gloo ({error.strerror}); choose the interface by "
                "which all hosts reach each other, as in NIC=eth1"
            ) from None
        own = probe.getsockname()[0]
    known: dict[str, Any] = psutil.net_if_addrs()
    return next(name for name in known if any(one.address == own for one in known[name]))


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
        ConfigError: an option is wrong or closed, there is no program to start, or the list cannot
            be used.
        DataError: the file of hosts cannot be used.
    """
    try:
        arguments = _parse()
    # Horovod's, of a file that is not a table of sections, or has a number of another type.
    except (OSError, yaml.YAMLError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"--config-file cannot be read as sections of options in YAML ({reason}); correct it"
        ) from None
    if any(getattr(arguments, name, None) is not None for name in _ELASTIC):
        raise ConfigError(_CLOSED)
    if not arguments.command:
        raise ConfigError(
            "there is no program to start; write it after the options, as in horovodrun -np 2 bash "
            "config.sh"
        )
    # It would be a folder in the user's home, which may be missing or not the user's; and what
    # was found an hour ago may be gone.
    arguments.disable_cache = True
    is_gloo = launch.is_gloo_used(arguments.use_gloo, arguments.use_mpi, arguments.use_jsrun)
    driver_service.get_common_interfaces = partial(interfaces, is_gloo)
    if arguments.hosts is not None:
        entries = read_list(arguments.hosts)
    elif arguments.hostfile is not None:
        entries = read_file(Path(arguments.hostfile))
    else:
        return arguments
    counts = slots_by_host(entries, is_own_name)
    # Horovod itself, or mpirun, refuses more ranks than slots.
    arguments.hosts = ",".join(f"{host}:{count or 1}" for host, count in counts.items())
    arguments.hostfile = None
    return arguments


def check_ssh(
    hosts: Sequence[str], port: Optional[int], identity_file: Optional[str], fn_cache: Any
) -> bool:
    """Check, as Horovod does but in a limited time, that hosts answer.

    Raises:
        ConfigError: with the first that does not.
    """
    seconds = int(os.environ["HOST_TIMEOUT"])
    ssh.check(hosts, seconds, ssh.client(seconds, *_options(port, identity_file)))
    return True


def _options(port: Optional[int], identity_file: Optional[str]) -> list[str]:
    """Options of ssh that the user has given, and Horovod's."""
    options = ["-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no"]
    options += ["-p", str(port)] if port else []
    options += ["-i", identity_file] if identity_file else []
    return options


def is_sent(name: str) -> bool:
    """True if other hosts get the variable of this name; Horovod would send almost all."""
    return name in ssh.variables_to_send({**os.environ, name: ""})


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
    seconds, (script,) = os.environ["HOST_TIMEOUT"], shlex.split(command)
    guard = ("bash", str(_LAUNCHERS / "remote-guard"), seconds, "bash", "-c", script)
    there = shlex.join([*ssh.RECEIVER, *guard])
    sent = f"--send={','.join(ssh.variables_to_send(os.environ))}"
    shell = ("bash", str(_LAUNCHERS / "remote-shell"), sent)
    return shlex.join([*shell, *_options(port, identity_file), *ssh.destination(host), there])


def launch_gloo(
    command: Any, starts: Any, settings: Any, nics: Any, env: dict[str, str], address: str
) -> None:
    """Start ranks that inherit their variables, or get them by ``remote_command``.

    Horovod makes all of them words of the ranks' commands, and its rendezvous listens on all
    addresses instead of the one that the ranks are told.
    """

    def listen(make_server: Callable[[tuple[str, int]], Any]) -> tuple[Any, int]:
        server = make_server((address, 0))
        hear_this_user(server)
        return server, server.server_address[1]

    http_server.find_port = listen
    os.environ.update(env)
    _start_ranks(command, starts, settings, nics, {}, address)


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
    # Which makes no objects of Python.
    launch.yaml = SimpleNamespace(load=lambda file, Loader: yaml.safe_load(file), FullLoader=None)
    launch._check_all_hosts_ssh_successful = check_ssh
    gloo_run.get_remote_command = remote_command
    gloo_run._exec_command_fn = starter
    gloo_run.launch_gloo = launch_gloo
    env.is_exportable = is_sent
    sys.argv[0] = "horovodrun"
    try:
        # A mistake in them is told first.
        ssh.variables_to_send(os.environ)
        launch.run_commandline()
    except UserError as error:
        print_line(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR_STATUS)
    except (RuntimeError, ValueError) as error:
        # A wrong option, or an error of ranks, which have printed the reason.
        print_line(f"horovodrun: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(USER_ERROR_STATUS if isinstance(error, ValueError) else 1)


# Horovod's own processes import this file, too.
if __name__ == "__main__":
    main()
