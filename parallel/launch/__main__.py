"""Start a job with parameter servers: a scheduler, servers and workers, here or on other machines.

    python -m parallel.launch -n 4 -s 2 -- python classify.py --kv-store dist_async ...
    python -m parallel.launch -n 4 -s 2 -H hosts -i eth0 --launcher ssh --groups groups -- \
        python classify.py --kv-store dist_gsync ...

Without ``-H`` everything runs on this machine and listens on 127.0.0.1 alone. docs/grouping-sgd.md
has the files and what happens when something dies.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Optional

from parallel.launch import data_sharding, groups, hosts, job, task
from parallel.launch.network_interface import Network, free_port
from parallel.launch.task import Task
from parallel.parameter_server.assignment import SCHEDULER, SERVER, WORKER, Assignment
from parallel.parameter_server.buckets import FEWEST_ELEMENTS, LARGEST, MOST_ELEMENTS
from parallel.parameter_server.schemes import SCHEMES
from runtime.command_line import Parser
from runtime.errors import ConfigError, did_you_mean, run_program

SERVE = (sys.executable, "-m", "parallel.parameter_server.serve")
"""What servers and the scheduler run."""
# Those in which nobody waits for a worker that has died.
_ASYNCHRONOUS = tuple(
    name for name, scheme in SCHEMES.items() if not scheme.is_synchronous and not scheme.has_groups
)
_STARTERS = {"local": task.locally, "ssh": task.by_ssh}


def main(argv: Optional[Sequence[str]] = None, serve: Sequence[str] = SERVE) -> int:
    """Run the job that the command line describes; returns its status.

    Args:
        argv: the command line, this process's by default.
        serve: what servers and the scheduler run.
    """
    parser = Parser(
        prog="python -m parallel.launch",
        description="Start scheduler, servers and workers; end all of them together.",
    )
    add_options(parser)
    parser.add_argument(
        "--groups",
        type=Path,
        metavar="FILE",
        help="a line for each group, the addresses of its workers separated by spaces",
    )
    parser.add_argument(
        "--data-sharding",
        type=Path,
        metavar="FILE",
        help="line k holds start and end of what worker k reads (with --data-allocator 1)",
    )
    parser.add_argument(
        "--tolerate-workers",
        action="store_true",
        help="go on without a worker that died; with dist_async and dist_ssync alone",
    )
    parser.add_argument(
        "--bucket-elements",
        type=_bucket_elements,
        default=LARGEST,
        metavar="N",
        help="largest number of weights that travel as one array (%(default)s)",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FOLDER",
        help="write down there the version of every push and pull, to check staleness by",
    )
    return launch(parser.parse_args(argv), serve)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where the job runs, and its command."""
    parser.add_argument("-n", dest="workers", type=_count, required=True, help="workers")
    parser.add_argument("-s", dest="servers", type=_count, required=True, help="servers")
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
        default="lo",
        help="the network interface that everybody listens on, and on no other (%(default)s)",
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
        help="relative speed of each server, who get load accordingly; by default all are equal",
    )
    parser.add_argument(
        "command", nargs="+", help="what every worker runs, after --, such as python classify.py"
    )


def launch(options: argparse.Namespace, serve: Sequence[str] = SERVE) -> int:
    """Run a job; see ``add_options`` and ``main`` for what it is told.

    Raises:
        ConfigError: the options contradict each other or the machine.
        DataError: one of the files is wrong.
    """
    scheme = _scheme(options)
    network = Network.find(options.interface)
    addresses = read_hosts(options, network)
    network.check(addresses, is_local=options.launcher == "local")
    if options.launcher == "ssh" and shutil.which("ssh") is None:
        raise ConfigError("--launcher ssh needs the program ssh; install OpenSSH's client")
    servers = _dealt_out(addresses, options.servers)
    assignment = Assignment(
        role=SCHEDULER,
        root_host=network.address,
        root_port=free_port(network.address),
        node_host=network.address,
        interface=options.interface,
        num_workers=options.workers,
        num_servers=options.servers,
        groups=groups.read(options.groups, addresses) if options.groups else (),
        shares=(
            data_sharding.read(options.data_sharding, options.workers)
            if options.data_sharding
            else ()
        ),
        tolerates=options.tolerate_workers,
        server_speeds=_as_mxnet_counts(servers, options.server_speeds),
        bucket_elements=options.bucket_elements,
        trace=str(options.trace.absolute()) if options.trace else "",
    )
    with _meeting(network, addresses, scheme) as meeting:
        commands = {SCHEDULER: serve, SERVER: serve, WORKER: options.command}
        tasks = _tasks(assignment, servers, addresses, commands, meeting)
        return job.run(tasks, _STARTERS[options.launcher], tolerates=options.tolerate_workers)


def read_hosts(options: argparse.Namespace, network: Network) -> tuple[str, ...]:
    """The address of each worker."""
    if options.hosts is None:
        return (network.address,) * int(options.workers)
    return hosts.read(options.hosts, options.workers)


def option_of(command: Sequence[str], name: str) -> Optional[str]:
    """The value that a command gives to an option, the last one if there are several."""
    value = None
    for word, following in zip(command, [*command[1:], None]):
        if word == name:
            value = following
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def _scheme(options: argparse.Namespace) -> str:
    scheme = option_of(options.command, "--kv-store")
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
        # Checked and handed on all the same, so that schemes can be compared by one word.
        print(
            f"launch: --groups {options.groups} makes no difference to --kv-store {scheme}",
            file=sys.stderr,
        )
    if options.data_sharding and option_of(options.command, "--data-allocator") != "1":
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


@contextmanager
def _meeting(
    network: Network, addresses: Sequence[str], scheme: str
) -> Iterator[list[dict[str, str]]]:
    """What each worker is told so that it meets the others of its group."""
    if not SCHEMES[scheme].has_groups:
        yield [{} for _ in addresses]
        return
    # It imports MXNet, which takes a second that only this scheme has to spend.
    from parallel.world import rendezvous

    with rendezvous(network.address, network.interface, addresses) as variables:
        yield variables


def _dealt_out(addresses: Sequence[str], servers: int) -> list[str]:
    """The host of each server: those of the workers, in turn."""
    machines = list(dict.fromkeys(addresses))
    return [machines[server % len(machines)] for server in range(servers)]


def _as_mxnet_counts(servers: Sequence[str], speeds: Sequence[float]) -> tuple[float, ...]:
    """Put speeds in the order of MXNet's server numbers; see ``Assignment.server_speeds``."""
    if not speeds:
        return ()
    if len(speeds) != len(servers):
        raise ConfigError(
            f"--server-speeds has {len(speeds)} numbers, but there are {len(servers)} servers; "
            "give it one for each"
        )
    by_address: dict[str, float] = {}
    for host, speed in zip(servers, speeds):
        # Those of one machine are numbered by their ports, which nobody knows before.
        if by_address.setdefault(Network.resolve(host), speed) != speed:
            raise ConfigError(
                f"--server-speeds: two servers on {host} have the speeds "
                f"{by_address[Network.resolve(host)]:g} and {speed:g}; those of one machine need "
                "the same"
            )
    ordered = sorted(map(Network.resolve, servers), reverse=True)
    return tuple(by_address[address] for address in ordered)


def _tasks(
    assignment: Assignment,
    servers: Sequence[str],
    workers: Sequence[str],
    commands: Mapping[str, Sequence[str]],
    meeting: Sequence[dict[str, str]],
) -> Iterator[Task]:
    """Scheduler, servers and workers on their hosts."""
    homes = {SCHEDULER: [assignment.root_host], SERVER: servers, WORKER: workers}
    for role, hosts_of_role in homes.items():
        for number, host in enumerate(hosts_of_role):
            is_worker = role == WORKER
            told = replace(
                assignment,
                role=role,
                worker=number if is_worker else 0,
                local_worker=workers[:number].count(host) if is_worker else 0,
                node_host=Network.resolve(host),
            )
            more = meeting[number] if is_worker else {}
            yield Task(
                role,
                number,
                host,
                sharers=max(1, workers.count(host)),
                command=commands[role],
                # Lines shall come when they are printed, although nobody reads them at a terminal.
                variables={"PYTHONUNBUFFERED": "1", **told.variables(), **more},
            )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _bucket_elements(text: str) -> int:
    elements = _count(text)
    if not FEWEST_ELEMENTS <= elements <= MOST_ELEMENTS:
        raise argparse.ArgumentTypeError(
            f"{elements} is not from {FEWEST_ELEMENTS} (MXNet's keys are limited) to "
            f"{MOST_ELEMENTS} (2 GB)"
        )
    return elements


def _speeds(text: str) -> tuple[float, ...]:
    try:
        speeds = tuple(float(word) for word in text.split(","))
    except ValueError:
        speeds = ()
    if not speeds or not all(0 < speed < math.inf for speed in speeds):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of positive numbers, such as 2,1")
    return speeds


if __name__ == "__main__":
    run_program(main)
