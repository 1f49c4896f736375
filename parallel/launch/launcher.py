"""Starts a job with parameter servers: its options, files and hosts, and their checks.

Also used by ``parallel.autogroup``, whose job measures the workers.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

from parallel.launch import job, layout, originals, ssh, sync
from parallel.launch.cluster_files import Groups, WorkerHosts, read_groups, read_hosts, read_servers
from parallel.launch.data_sharding import read_shares, unread_in_groups
from parallel.launch.network_interface import NetworkInterface, free_port, resolve
from parallel.parameter_server.assignment import SCHEDULER, SERVER, WORKER, Assignment, Share
from parallel.parameter_server.buckets import LARGEST
from parallel.parameter_server.schemes import SCHEMES
from runtime import environment
from runtime.command_line import Parser, positive_integer
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

    def worker_hosts(self) -> WorkerHosts:
        """Return the machine of each worker."""
        if self.hosts is None:
            here = (NetworkInterface.find(self.interface).address,) * self.workers
            return WorkerHosts(here, here)
        return read_hosts(self.hosts, self.workers)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where a job runs, and its command."""
    _add_shared_options(parser)
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
        help="with --launcher ssh: first copy the project, and files or folders of this folder "
        "(--sync=NAME,...), to all hosts, to the same places",
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        help="what every worker runs, such as python classify.py --kv-store dist_async; all that "
        "follows its first word, or --, belongs to it",
    )


def _add_shared_options(parser: argparse.ArgumentParser) -> None:
    """Add those that ``tools/launch.py`` of MXNet or ``dmlc-submit`` have, also by their names."""
    parser.add_argument(
        *("-n", "--num-workers"),
        dest="workers",
        type=positive_integer,
        required=True,
        metavar="N",
        help="number of workers",
    )
    parser.add_argument(
        *("-s", "--num-servers"),
        dest="servers",
        type=positive_integer,
        metavar="N",
        help="number of servers (default: as many as workers)",
    )
    parser.add_argument(
        *("-H", "--hostfile", "--host-file"),
        dest="hosts",
        type=Path,
        metavar="FILE",
        help="a line for each worker with its address, ADDRESS:PORT for another port of the ssh "
        "server; with fewer lines they are used in turn, with more only the first; without the "
        "option all workers are on this machine",
    )
    parser.add_argument(
        *("-i", "--dmlc-interface"),
        dest="interface",
        default=environment.variables().get("NIC") or "lo",
        metavar="NAME",
        help="the network interface on which all processes listen, and on no other (%(default)s)",
    )
    parser.add_argument(
        *("--launcher", "--cluster"),
        type=_launcher,
        default="local",
        metavar="{" + ",".join(_STARTERS) + "}",
        help="start workers and servers on this machine, or on theirs, by ssh with keys "
        "(%(default)s)",
    )
    parser.add_argument(
        *("-p", "--parameter-partition-num"),
        dest="partition",
        metavar="N",
        help="taken and ignored: MXNet-G divides the weights of a server by it",
    )


def parse(parser: Parser, argv: Optional[Sequence[str]]) -> dict[str, Any]:
    """Return the options of a command line that ``add_options`` has added, with their command.

    Args:
        parser: with these options and others.
        argv: the words; by default those of this process.

    Raises:
        ConfigError: an option is wrong, or one of the launcher stands in the command.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    options, unknown = parser.parse_known_args(words)
    names = parser.names()
    originals.check_options(unknown, names)
    command = options.command
    is_divided = command[:1] == ["--"]
    if is_divided:
        del command[0]
    if not command:
        parser.error("the following arguments are required: command")
    originals.check_program(command)
    if not is_divided:
        _check_undivided(words[: len(words) - len(command)], command, names)
    values: dict[str, Any] = vars(options)
    values["servers"] = options.servers or options.workers
    if (partition := values.pop("partition")) is not None:
        _say(f"-p {partition} makes no difference: see --server-speeds and --bucket-elements")
    return values


def _check_undivided(own: Sequence[str], command: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a command without ``--`` of which it is not clear where it starts or ends.

    Args:
        own: the words before it.
        command: its words.
        names: the launcher's options.
    """
    first = " ".join(command[:2])
    for word in command:
        if word.partition("=")[0] in names:
            raise ConfigError(
                f"{word} stands after the command {first!r}: put it before the command, or, if it "
                f"is not the launcher's, put -- there, as in -n 4 -s 2 -- {first} {word} ..."
            )
    if "--sync" in own[-2:-1]:
        raise ConfigError(
            f"--sync {own[-1]}: with names of files write --sync={own[-1]}, and without put -- "
            f"before the command, as in --sync -- {own[-1]} {first}"
        )


def _say(line: str) -> None:
    print(f"launch: {line}", file=sys.stderr)


def launch(options: JobOptions, serve: Sequence[str] = SERVE) -> int:
    """Run a job, whose servers and scheduler run the command ``serve``; returns its status.

    Raises:
        ConfigError: the options contradict each other or the machine.
        DataError: one of the files is wrong.
    """
    options = _with_files_of_this_folder(options)
    scheme = _checked_scheme(options)
    interface = NetworkInterface.find(options.interface)
    workers = options.worker_hosts()
    interface.check(workers.addresses, is_local=options.launcher == "local")
    servers, speeds = _servers(options, workers)
    groups = read_groups(options.groups, workers.addresses) if options.groups else ()
    for line in workers.notes:
        _say(line)
    machines = list(dict.fromkeys(workers.logins))
    # After all checks of what was typed.
    with ssh.exits_on_signals():
        _sync(options, machines)
        address_of = _addresses(options, machines, interface, scheme)
    worker_addresses = [address_of[host] for host in workers.logins]
    # MXNet numbers workers by these addresses, whatever names ``hosts`` has.
    shares = _shares(options, worker_addresses, scheme, groups)
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
        server_speeds=layout.speeds_in_mxnet_order(servers, speeds, address_of),
        bucket_elements=options.bucket_elements,
        trace=str(options.trace.absolute()) if options.trace else "",
    )
    commands = {SCHEDULER: serve, SERVER: serve, WORKER: options.command}
    hosts = {SCHEDULER: [interface.address], SERVER: servers, WORKER: workers.logins}
    addresses = {interface.address: interface.address, **address_of}
    with layout.rendezvous(interface, worker_addresses, scheme) as variables:
        specs = layout.specs(scheduler, hosts, addresses, commands, variables)
        return job.run(specs, _STARTERS[options.launcher], tolerates=options.tolerate_workers)


def _shares(
    options: JobOptions, addresses: Sequence[str], scheme: str, groups: Groups
) -> tuple[Share, ...]:
    """Read the share of each worker, if there is a file, and print which address reads what."""
    if options.data_sharding is None:
        return ()
    found = read_shares(options.data_sharding, addresses)
    job_of_all = Assignment("", "", 0, "", "", len(addresses), 1, groups=groups)
    together = SCHEMES[scheme].synchronous_groups(job_of_all)
    for line in found.notes:
        _say(line)
    for line in (*found.warnings, *unread_in_groups(found.of_workers, together)):
        _say(f"warning: {line}")
    return found.of_workers


def addresses_of_workers(options: JobOptions) -> list[str]:
    """Ask the hosts for the address of each worker on the interface of the job.

    Raises:
        ConfigError: a host does not answer.
    """
    logins = options.worker_hosts().logins
    machines = list(dict.fromkeys(logins))
    interface = NetworkInterface.find(options.interface)
    with ssh.exits_on_signals():
        # Workers of a scheme without groups need not find each other by their hosts' own names.
        address_of = _addresses(options, machines, interface, _ASYNCHRONOUS[0])
    return [address_of[host] for host in logins]


def _addresses(
    options: JobOptions, machines: Sequence[str], interface: NetworkInterface, scheme: str
) -> dict[str, str]:
    """The address of each machine at which the others reach its processes."""
    if options.launcher == "local":
        return {machine: resolve(ssh.host_of(machine)) for machine in machines}
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


def _servers(options: JobOptions, workers: WorkerHosts) -> tuple[Sequence[str], Sequence[float]]:
    """Return where each server logs in, by default at the workers' in turn, and speeds, if any."""
    if options.server_hosts is None:
        machines = list(dict.fromkeys(workers.logins))
        hosts = [machines[server % len(machines)] for server in range(options.servers)]
        return hosts, options.server_speeds
    if options.server_speeds:
        raise ConfigError(
            f"--server-hosts {options.server_hosts} has the speeds of the servers, too; leave "
            "--server-speeds out"
        )
    addresses, speeds = read_servers(options.server_hosts, options.servers, workers.addresses)
    login_of = dict(zip(reversed(workers.addresses), reversed(workers.logins)))
    return [login_of[address] for address in addresses], speeds


def _sync(options: JobOptions, machines: Sequence[str]) -> None:
    """Copy what ``--sync`` says to all hosts, and print what each has got."""
    if options.sync is None:
        return
    if options.launcher == "local":
        raise ConfigError("--sync copies to other hosts: add --launcher ssh and -H FILE")
    _check_ssh()
    for line in sync.copy_to(machines, options.sync):
        _say(line)


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
    _say(f"--{name.replace('_', '-')} {path}, which is in this folder")
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
        _say(f"--groups {options.groups} makes no difference to --kv-store {scheme}")
    if SCHEMES[scheme].is_bounded and _option_of(options.command, "--staleness") is None:
        _say(f"--kv-store {scheme} without --staleness: it is 0, no worker runs ahead")
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


def _launcher(text: str) -> str:
    if text in _STARTERS:
        return text
    remedy = originals.LAUNCHERS.get(text)
    raise argparse.ArgumentTypeError(
        f"{text} is not ported; {remedy}" if remedy else f"{text!r} is not {' or '.join(_STARTERS)}"
    )


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
