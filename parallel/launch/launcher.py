"""Lays out a job with parameter servers: which process runs on which host, with which assignment.

Also used by ``parallel.autogroup``, whose job measures the workers.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from parallel.launch import job, ssh, sync
from parallel.launch.cluster_files import read_groups, read_hosts, read_servers, read_shares
from parallel.launch.job import ProcessSpec
from parallel.launch.network_interface import NetworkInterface, free_port, resolve
from parallel.parameter_server.assignment import SCHEDULER, SERVER, WORKER, Assignment
from parallel.parameter_server.buckets import LARGEST
from parallel.parameter_server.schemes import SCHEMES
from runtime import environment
from runtime.command_line import positive_integer
from runtime.errors import ConfigError, did_you_mean

SERVE = (sys.executable, "-m", "parallel.parameter_server.serve")
"""The command of servers and scheduler."""
# The schemes in which no worker waits for one that has died.
_ASYNCHRONOUS = tuple(
    name for name, scheme in SCHEMES.items() if not scheme.is_synchronous and not scheme.has_groups
)
_STARTERS = {"local": job.locally, "ssh": job.by_ssh}


@dataclass(frozen=True)
class JobOptions:
    """The options of a job; ``add_options`` and ``parallel.launch`` have their help."""

    workers: int
    servers: int
    hosts: Optional[Path]
    interface: str
    launcher: str
    server_speeds: tuple[float, ...]
    command: Sequence[str]
    """Of every worker."""
    groups: Optional[Path] = None
    data_sharding: Optional[Path] = None
    tolerate_workers: bool = False
    bucket_elements: int = LARGEST
    trace: Optional[Path] = None
    server_hosts: Optional[Path] = None
    sync: Optional[tuple[str, ...]] = None
    """Files that are copied to all hosts together with the project; None: nothing is copied."""

    def addresses(self) -> tuple[str, ...]:
        """The address of each worker."""
        if self.hosts is None:
            return (NetworkInterface.find(self.interface).address,) * self.workers
        return read_hosts(self.hosts, self.workers)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where a job runs, and its command."""
    parser.add_argument("-n", dest="workers", type=positive_integer, required=True, help="workers")
    parser.add_argument("-s", dest="servers", type=positive_integer, required=True, help="servers")
    parser.add_argument(
        "-H",
        dest="hosts",
        type=Path,
        metavar="FILE",
        help="one address for each worker; without it all are on this machine",
    )
    parser.add_argument(
        "-i",
        dest="interface",
        default=environment.variables().get("NIC") or "lo",
        help="the network interface on which all processes listen, and on no other (%(default)s)",
    )
    parser.add_argument(
        "--launcher",
        choices=tuple(_STARTERS),
        default="local",
        help="start workers and servers on this machine, or on theirs, by ssh with keys "
        "(%(default)s)",
    )
    parser.add_argument(
        "--server-speeds",
        type=_speeds,
        default=(),
        metavar="SPEED,...",
        help="relative speed of each server, to which its load is proportional; by default equal",
    )
    parser.add_argument(
        "--sync",
        nargs="?",
        const=(),
        type=_names,
        metavar="NAME,...",
        help="with --launcher ssh: first copy the project, and files or folders of this folder, to "
        "all hosts, to the same places",
    )
    parser.add_argument(
        "command", nargs="+", help="what every worker runs, after --, such as python classify.py"
    )


def parse(parser: argparse.ArgumentParser, argv: Optional[Sequence[str]]) -> dict[str, Any]:
    """The options of a command line, by default this process's, which ``add_options`` has added.

    Raises:
        ConfigError: an option is wrong, or the command has options and no ``--`` before it.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    options, unknown = parser.parse_known_args(words)
    if "--" not in words:
        command = words[words.index(options.command[0]) :]
        mine = next((word for word in command if word.startswith("-")), None)
        if mine is not None:
            raise ConfigError(
                f"{mine} stands behind the command {' '.join(options.command[:2])!r}: put -- "
                f"before the command, as in -n 4 -s 2 -- {' '.join(options.command[:2])} {mine} ..."
            )
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return vars(options)


def launch(options: JobOptions, serve: Sequence[str] = SERVE) -> int:
    """Run a job, whose servers and scheduler run the command ``serve``; returns its status.

    Raises:
        ConfigError: the options contradict each other or the machine.
        DataError: one of the files is wrong.
    """
    options = _with_files_of_this_folder(options)
    scheme = _checked_scheme(options)
    interface = NetworkInterface.find(options.interface)
    workers = options.addresses()
    interface.check(workers, is_local=options.launcher == "local")
    machines = list(dict.fromkeys(workers))
    servers, speeds = _servers(options, workers)
    groups = read_groups(options.groups, workers) if options.groups else ()
    shares = read_shares(options.data_sharding, options.workers) if options.data_sharding else ()
    # Behind all checks of what was typed.
    _sync(options, machines)
    address_of = _addresses(options, machines, interface, scheme)
    scheduler = Assignment(
        role=SCHEDULER,
        root_host=interface.address,
        root_port=free_port(interface.address),
        node_host=interface.address,
        interface=options.interface,
        num_workers=options.workers,
        num_servers=options.servers,
        groups=groups,
        shares=shares,
        tolerates=options.tolerate_workers,
        server_speeds=_in_mxnet_order(servers, speeds, address_of),
        bucket_elements=options.bucket_elements,
        trace=str(options.trace.absolute()) if options.trace else "",
    )
    commands = {SCHEDULER: serve, SERVER: serve, WORKER: options.command}
    hosts = {SCHEDULER: [interface.address], SERVER: servers, WORKER: workers}
    addresses = {interface.address: interface.address, **address_of}
    with _rendezvous(interface, [address_of[host] for host in workers], scheme) as variables:
        specs = _specs(scheduler, hosts, addresses, commands, variables)
        return job.run(specs, _STARTERS[options.launcher], tolerates=options.tolerate_workers)


def _addresses(
    options: JobOptions, machines: Sequence[str], interface: NetworkInterface, scheme: str
) -> dict[str, str]:
    """The address of each machine at which the others reach its processes."""
    if options.launcher == "local":
        return {machine: resolve(machine) for machine in machines}
    _check_ssh()
    reports = ssh.ask(machines, interface)
    is_one_host = len({report.address for report in reports.values()}) == 1
    for machine, report in reports.items():
        if SCHEMES[scheme].has_groups and report.named != report.address and not is_one_host:
            raise ConfigError(
                f"host {machine}: the groups of {scheme} connect at the address of the host's own "
                f"name, there {report.named or 'none'}, which is not {report.address} on -i "
                f"{interface.name}; change it in the hosts files"
            )
    return {machine: report.address for machine, report in reports.items()}


def _servers(
    options: JobOptions, workers: Sequence[str]
) -> tuple[Sequence[str], Sequence[float]]:
    """The host of each server, by default the workers' in turn, and the servers' speeds, if any."""
    if options.server_hosts is None:
        machines = list(dict.fromkeys(workers))
        hosts = [machines[server % len(machines)] for server in range(options.servers)]
        return hosts, options.server_speeds
    if options.server_speeds:
        raise ConfigError(
            f"--server-hosts {options.server_hosts} has the speeds of the servers, too; leave "
            "--server-speeds out"
        )
    return read_servers(options.server_hosts, options.servers, workers)


def _sync(options: JobOptions, machines: Sequence[str]) -> None:
    """Copy what ``--sync`` says to all hosts, and print what each has got."""
    if options.sync is None:
        return
    if options.launcher == "local":
        raise ConfigError("--sync copies to other hosts: add --launcher ssh and -H FILE")
    _check_ssh()
    for line in sync.copy_to(machines, options.sync):
        print(f"launch: {line}", file=sys.stderr)


def _check_ssh() -> None:
    """Refuse a machine without ssh, and GPUs that other machines do not have."""
    if shutil.which("ssh") is None:
        raise ConfigError("--launcher ssh needs the program ssh; install OpenSSH's client")
    shown = environment.variables().get("CUDA_VISIBLE_DEVICES", "")
    if shown.strip("0123456789, -"):
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES={shown!r} names GPUs of a single host; with --launcher ssh give "
            "their numbers, as in CUDA_VISIBLE_DEVICES=0,1, or unset it"
        )


def _option_of(command: Sequence[str], name: str) -> Optional[str]:
    """The value of an option in a command, the last one if there are several."""
    value = None
    for word, following in zip(command, [*command[1:], None]):
        if word == name:
            value = following
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def _with_files_of_this_folder(options: JobOptions) -> JobOptions:
    """Options with ``groups`` and ``data_sharding``, if the command needs them and they are here.

    These are the names under which ``autogroup`` and Grouping-SGD write them.
    """
    scheme = SCHEMES.get(_option_of(options.command, "--kv-store") or "")
    if options.groups is None and scheme is not None and scheme.has_groups:
        options = replace(options, groups=_found("groups"))
    if options.data_sharding is None and _option_of(options.command, "--data-allocator") == "1":
        options = replace(options, data_sharding=_found("data_sharding"))
    return options


def _found(name: str) -> Optional[Path]:
    path = Path(name)
    if not path.is_file():
        return None
    print(f"launch: --{name.replace('_', '-')} {path}, which is in this folder", file=sys.stderr)
    return path


def _checked_scheme(options: JobOptions) -> str:
    """The --kv-store of the command, with which the options go together."""
    scheme = _option_of(options.command, "--kv-store")
    if scheme is None:
        raise ConfigError(
            f"the command has no --kv-store; give it one of {', '.join(SCHEMES)}, or start it "
            "with horovodrun, which needs no servers"
        )
    if scheme not in SCHEMES:
        raise ConfigError(
            f"--kv-store {scheme} has no servers{did_you_mean(scheme, SCHEMES)}; those that have "
            f"are {', '.join(SCHEMES)}"
        )
    if SCHEMES[scheme].has_groups and options.groups is None:
        raise ConfigError(
            f"--kv-store {scheme} needs --groups FILE; python -m parallel.autogroup writes one"
        )
    if options.groups is not None and not SCHEMES[scheme].has_groups:
        # No error, so that the same command compares schemes when one word is changed.
        print(
            f"launch: --groups {options.groups} makes no difference to --kv-store {scheme}",
            file=sys.stderr,
        )
    if options.data_sharding and _option_of(options.command, "--data-allocator") != "1":
        raise ConfigError(
            f"--data-sharding {options.data_sharding} would be ignored; add --data-allocator 1 to "
            "the command, or leave it out"
        )
    if options.tolerate_workers and scheme not in _ASYNCHRONOUS:
        raise ConfigError(
            f"--tolerate-workers goes with --kv-store {' or '.join(_ASYNCHRONOUS)}: with {scheme} "
            "workers wait for each other; leave it out"
        )
    return scheme


def _rendezvous(
    interface: NetworkInterface, workers: Sequence[str], scheme: str
) -> AbstractContextManager[list[dict[str, str]]]:
    """The variables by which each worker becomes a rank of Horovod; with groups alone."""
    if not SCHEMES[scheme].has_groups:
        return nullcontext([{} for _ in workers])
    # Its import of MXNet takes a second.
    from parallel.world import rendezvous

    return rendezvous(interface.address, interface.name, workers)


def _in_mxnet_order(
    servers: Sequence[str], speeds: Sequence[float], address_of: Mapping[str, str]
) -> tuple[float, ...]:
    """Put speeds in the order of MXNet's server numbers; see ``Assignment.server_speeds``."""
    if not speeds:
        return ()
    if len(speeds) != len(servers):
        raise ConfigError(
            f"--server-speeds has {len(speeds)} numbers, but there are {len(servers)} servers; "
            "give it one for each"
        )
    addresses = [address_of[server] for server in servers]
    speed_of: dict[str, float] = {}
    for host, address, speed in zip(servers, addresses, speeds):
        # MXNet numbers the servers of a machine by ports that are not known yet.
        if speed_of.setdefault(address, speed) != speed:
            raise ConfigError(
                f"two servers on {host} have the speeds {speed_of[address]:g} and "
                f"{speed:g}; those of one machine need the same"
            )
    return tuple(speed_of[address] for address in sorted(addresses, reverse=True))


def _specs(
    scheduler: Assignment,
    hosts: Mapping[str, Sequence[str]],
    address_of: Mapping[str, str],
    commands: Mapping[str, Sequence[str]],
    worker_variables: Sequence[Mapping[str, str]],
) -> Iterator[ProcessSpec]:
    """Scheduler, servers and workers on their hosts; hosts and commands by role."""
    workers = [address_of[host] for host in hosts[WORKER]]
    for role, hosts_of_role in hosts.items():
        for number, host in enumerate(hosts_of_role):
            is_worker, address = role == WORKER, address_of[host]
            assignment = replace(
                scheduler,
                role=role,
                worker=number if is_worker else 0,
                local_worker=workers[:number].count(address) if is_worker else 0,
                node_host=address,
            )
            variables = {
                # Lines are sent when they are printed, although a pipe is no terminal.
                "PYTHONUNBUFFERED": "1",
                **assignment.variables(),
                **(worker_variables[number] if is_worker else {}),
            }
            sharers = max(1, workers.count(address))
            yield ProcessSpec(role, number, host, sharers, commands[role], variables)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of files; give their names, as in groups,cifar10"
        )
    return names


def _speeds(text: str) -> tuple[float, ...]:
    try:
        speeds = tuple(float(word) for word in text.split(","))
    except ValueError:
        speeds = ()
    if not speeds or not all(0 < speed < math.inf for speed in speeds):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of positive numbers, such as 2,1")
    return speeds
