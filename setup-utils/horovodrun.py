"""Horovod's launcher, told the interface and the GPUs that the user has chosen for all hosts.

It gets lists of hosts that it can use: the reader of all launchers has read them. Keys and values
of variables are no arguments of its processes, which every user of a host can read. Its elastic
mode is closed.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, NoReturn, Optional

import yaml  # type: ignore[import-untyped]
from horovod.runner import gloo_run, launch
from horovod.runner.common.util import codec, env, safe_shell_exec
from horovod.runner.driver import driver_service
from horovod.runner.http import http_server
from horovod.runner.util import threads
from typing_extensions import override

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from parallel.host_lists import read_file, read_list, slots_by_host
from parallel.launch import ssh, variables
from parallel.launch.allocations import make_output_folder
from parallel.launch.network_interface import NetworkInterface, is_own_name
from runtime import files
from runtime.command_line import Parser
from runtime.errors import USER_ERROR_STATUS, ConfigError, UserError
from runtime.process.loopback import hear_this_user, loopback_variables
from runtime.process.terminal import print_line

_LAUNCHERS = Path(__file__).resolve().parent / "launchers"
_find_interfaces = driver_service.get_common_interfaces
_gloo_starter = gloo_run._exec_command_fn
_start_ranks = gloo_run.launch_gloo
_parse = launch.parse_args
_check_ssh = launch._check_all_hosts_ssh_successful
_become = os.execve
# As Horovod calls ssh, and without questions.
_SSH_OPTIONS = ("-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no")
# Names of the elastic options, as argparse and Horovod's configuration files have them.
_ELASTIC = frozenset(
    "elastic min_np min_num_proc max_np max_num_proc slots slots_per_host elastic_timeout "
    "reset_limit cooldown_range blacklist_cooldown_range host_discovery_script".split()
)
_CLOSED = (
    "Horovod's elastic and run-function modes are closed here, because whoever reaches their port "
    "runs programs as you (CVE-2024-10190); to start again after a failure, type: bash run.sh "
    "--restarts 10"
)
_LONGEST_CONFIG = 1 << 20
# A service that looks for the interfaces of a host, and the variable with its arguments.
_SEARCH = "HOROVOD_SEARCH"
_SEARCH_SERVICE = (
    "import os; from horovod.runner.common.util import codec; from horovod.runner.task_fn import "
    f"_task_fn; _task_fn(*codec.loads_base64(os.environ.pop('{_SEARCH}')))"
)


def interfaces(
    settings: Any, hosts: Sequence[str], remote_hosts: Sequence[str], cache: Any
) -> Sequence[str]:
    """The one in ``NIC``; Horovod's own option for it fails where all ranks are on this host.

    Raises:
        ConfigError: this host does not have an interface that the user has chosen.
    """
    for name in settings.nics or ():
        NetworkInterface.find(name, "--network-interface")
    chosen = os.environ.get("NIC")
    if chosen and remote_hosts:
        return [chosen]
    found = _search(settings, hosts, remote_hosts, cache)
    if not remote_hosts:
        os.environ.update(loopback_variables())
    return found


def _search(*arguments: Any) -> Sequence[str]:
    """Let Horovod search; where it fails, threads that wait would keep this process."""
    try:
        with ssh.exits_on_signals():
            found: Sequence[str] = _find_interfaces(*arguments)
        return found
    except SystemExit as end:
        status: Any = end.code
    except UserError:
        raise
    except Exception as error:
        # Horovod raises plain ones.
        status = USER_ERROR_STATUS
        print_line(
            f"error: the hosts find no interface by which all reach each other ({error}); choose "
            "one, as in NIC=eth1, and let its ports through between the hosts",
            file=sys.stderr,
        )
    sys.stderr.flush()
    os._exit(status)


class _ClosedOption(argparse.Action):
    """An option that is refused as soon as it is met, before others are missed."""

    @override
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        raise ConfigError(f"{option_string}: {_CLOSED}")


class Options(Parser):
    """Horovod's options: a mistake is one line instead of pages of usage, names are not shortened.

    One short name is a name here, ``--check``, which InsightFace's README types.
    """

    @override
    def parse_known_args(
        self, args: Optional[Sequence[str]] = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        options = self._option_string_actions
        for name, action in options.items():
            if action.dest in _ELASTIC:
                action.help = argparse.SUPPRESS
                options[name] = _ClosedOption([name], action.dest, nargs="?")
        return super().parse_known_args(args, namespace)

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
    except (AttributeError, TypeError) as error:
        if not any(word.startswith("--config-file") for word in sys.argv):
            raise
        raise ConfigError(
            f"--config-file: a section or a number in it has another type ({error}); correct it"
        ) from None
    if not arguments.command:
        raise ConfigError(
            "there is no program to start; write it after the options, as in horovodrun -np 2 bash "
            "config.sh"
        )
    if arguments.num_proc is not None and arguments.num_proc < 1:
        raise ConfigError(f"-np {arguments.num_proc} is not a number of ranks; give one from 1 on")
    # It would be a folder in the user's home, which may be missing or not the user's; and what
    # was found an hour ago may be gone.
    arguments.disable_cache = True
    if arguments.output_filename is not None:
        make_output_folder(arguments.output_filename)
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


def read_config(path: str, **_: object) -> dict[Any, Any]:
    """Read the file of ``--config-file``, which is small, no pipe, and makes no objects of Python.

    Raises:
        ConfigError: it is no table of options, or has options of the elastic mode.
        OSError: it cannot be read.
    """
    file = io.BytesIO(files.read_file(path, _LONGEST_CONFIG))
    # For the messages of YAML.
    file.name = path
    try:
        config = yaml.safe_load(file)
    # Dates that are none and deep lists raise errors of Python.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"--config-file {path} is no YAML ({reason}); correct it") from None
    if not isinstance(config, dict):
        raise ConfigError(f"--config-file {path} is no table of options in YAML; correct it")
    sections = [config, *(section for section in config.values() if isinstance(section, dict))]
    for name in (str(name) for section in sections for name in section):
        if name.replace("-", "_").strip("_") in _ELASTIC:
            raise ConfigError(f"--config-file {path} has {name}: {_CLOSED}")
    return config


def refuse_mode(*_: object, **__: object) -> NoReturn:
    """Take the place of what starts the elastic and the run-function mode.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(_CLOSED)


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


def is_sent(name: str) -> bool:
    """True if other hosts get the variable of this name; Horovod would send almost all."""
    return name in variables.names({**os.environ, name: ""})


def remote_command(
    command: str,
    host: str,
    port: Optional[int] = None,
    identity_file: Optional[str] = None,
    more: Sequence[str] = (),
) -> str:
    """A rank of Gloo on another host, in a session that notices when one of the hosts is cut off.

    Args:
        command: quoted once, for this host's shell.
        host: where it runs.
        port: of the ssh server, if it is not the usual one.
        identity_file: of ssh.
        more: names of variables that it gets, besides those that all hosts get.
    """
    options = _options(port, identity_file)
    seconds, (script,) = os.environ["HOST_TIMEOUT"], shlex.split(command)
    guard = ("bash", str(_LAUNCHERS / "remote-guard"), seconds, "bash", "-c", script)
    there = shlex.join([*variables.RECEIVER, *guard])
    sent = ",".join([*variables.names(os.environ), *more])
    shell = ("bash", str(_LAUNCHERS / "remote-shell"), f"--send={sent}")
    return shlex.join([*shell, *options, *ssh.destination(host), there])


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


def launch_search(
    hosts: Sequence[str], own_hosts: Sequence[str], driver_addresses: Any, settings: Any
) -> None:
    """Start the services that look for common interfaces, one on each host.

    They run what a message with the key of the settings says. Horovod makes the settings a word of
    their commands; here a variable has them, on its way the standard input of ssh.
    """

    def run(index: int, host: str) -> None:
        arguments = codec.dumps_base64((index, len(hosts), driver_addresses, settings))
        command = shlex.join([sys.executable, "-c", _SEARCH_SERVICE])
        if host not in own_hosts:
            port, identity_file = settings.ssh_port, settings.ssh_identity_file
            command = remote_command(shlex.quote(command), host, port, identity_file, (_SEARCH,))
        output = io.StringIO()
        status = safe_shell_exec.execute(
            command, {**os.environ, _SEARCH: arguments}, stdout=output, stderr=output
        )
        if status != 0:
            reason = ssh.last_line(output.getvalue()).removeprefix("error: ")
            print(
                f"error: the search for common interfaces has failed on host {host}: {reason}; "
                "choose an interface for all hosts, as in NIC=eth1",
                file=sys.stderr,
                flush=True,
            )
            os._exit(USER_ERROR_STATUS)

    # The index of a host is also that of its service.
    pairs = [[index, host] for index, host in enumerate(hosts)]
    threads.execute_function_multithreaded(run, pairs, block_until_all_done=False)


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
    # ``read_config`` opens the file.
    launch.open = lambda path, *_: nullcontext(path)
    launch.argparse = SimpleNamespace(**{**vars(argparse), "ArgumentParser": Options})
    launch.yaml = SimpleNamespace(load=read_config, FullLoader=None)
    launch._run_elastic = launch.KVStoreServer = refuse_mode
    launch._check_all_hosts_ssh_successful = check_ssh
    driver_service.get_common_interfaces = interfaces
    driver_service._launch_task_servers = launch_search
    gloo_run.get_remote_command = remote_command
    gloo_run._exec_command_fn = starter
    gloo_run.launch_gloo = launch_gloo
    env.is_exportable = is_sent
    sys.argv[0] = "horovodrun"
    try:
        # A mistake in them is told first.
        variables.names(os.environ)
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
