"""The options of a job with parameter servers, also for ``parallel.autogroup``, and its command.

A command that was written for ``tools/launch.py`` of MXNet-G and MXNet, or for ``dmlc-submit``,
runs here as it is where the option means the same, and is answered in one line where it does not.
docs/porting.md has the same tables.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from parallel.launch.cluster_files import number
from parallel.parameter_server.buckets import FEWEST_ELEMENTS, LARGEST, MOST_ELEMENTS
from runtime import environment
from runtime.command_line import Parser, positive_integer
from runtime.process.terminal import print_line

_HINTS = {
    "--sync-dst-dir --files --archives --auto-file-cache": (
        "all hosts have the project in the same folder: give --sync, which copies it there, or "
        "--sync=NAME,... for files and folders of this folder as well"
    ),
    "--env*": (
        "write NAME=VALUE before the launcher; those that libraries read go to all processes, and "
        "those that SEND_VARIABLES=NAME,... names"
    ),
    "--host-ip": "give -i, the interface on which the processes reach each other",
    "--p3 --*-cores --*-memory --log-* --local-num-attempt --jobname --queue --hdfs-* --sge-* "
    "--yarn-* --mesos-* --slurm-* --kube-* --ship-libcxx": "leave it out",
}
FOREIGN = {name: hint for names, hint in _HINTS.items() for name in names.split()}
"""Options of these launchers, as patterns, and what to type here instead."""


@dataclass(frozen=True)
class JobOptions:
    """The options of a job, which have their help in the functions below."""

    workers: int
    servers: int
    hosts: Optional[Path]
    interface: str
    launcher: str
    groups: Optional[Path]
    data_sharding: Optional[Path]
    server_hosts: Optional[Path]
    server_speeds: tuple[float, ...]
    sync: Optional[tuple[str, ...]]
    """Files that are copied to all hosts together with the project; None: nothing is copied."""
    tolerate_workers: bool
    bucket_elements: int
    trace: Optional[Path]
    command: Sequence[str]
    """The command that every worker runs."""


def parse(module: str, purpose: str, argv: Optional[Sequence[str]]) -> JobOptions:
    """Return the options of a command line.

    Args:
        module: the one that is run.
        purpose: what it does.
        argv: the words; by default those of this process.

    Raises:
        ConfigError: an option is wrong, or there is no command.
    """
    parser = Parser(prog=f"python -m {module}", description=purpose, foreign=FOREIGN)
    _add_shared_options(parser)
    _add_files(parser)
    _add_own_options(parser)
    values: dict[str, Any] = vars(parser.parse_args(argv))
    if values["command"][:1] == ["--"]:
        del values["command"][0]
    if not values["command"]:
        parser.error("the following arguments are required: command")
    values["servers"] = values["servers"] or values["workers"]
    del values["partition"]
    return JobOptions(**values)


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
        choices=("local", "ssh"),
        default="local",
        help="start workers and servers on this machine, or on theirs, by ssh with keys "
        "(%(default)s)",
    )
    parser.add_argument(
        *("-p", "--parameter-partition-num"),
        dest="partition",
        metavar="N",
        help="taken and ignored: MXNet-G divides the weights of a server by it",
    )


def _add_files(parser: argparse.ArgumentParser) -> None:
    """Add the files that ``parallel.autogroup`` writes and ``parallel.launch`` reads."""
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
        help="line k holds start and end of what one worker reads, as parts of 1 (with "
        "--data-allocator 1): the first line is for the worker with the highest address, compared "
        "as text, and so on downwards, as MXNet numbers workers; the log names each",
    )
    parser.add_argument(
        "--server-hosts",
        type=Path,
        metavar="FILE",
        help="line k holds the address and the relative speed of server k; by default the servers "
        "are on the workers' machines in turn",
    )


def _add_own_options(parser: argparse.ArgumentParser) -> None:
    """Add those of this project alone, and the command."""
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
        type=lambda text: tuple(filter(None, text.split(","))),
        metavar="NAME,...",
        help="with --launcher ssh: first copy the project, and files or folders of this folder "
        "(--sync=NAME,...), to all hosts, to the same places",
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
        help="largest number of weights that are sent as one array (%(default)s)",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FOLDER",
        help="record there the version of every push and pull, to check staleness by",
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        help="what every worker runs, such as python classify.py --kv-store dist_async; all that "
        "follows its first word, or --, belongs to it",
    )


def say(line: str) -> None:
    """Print a line about the job."""
    print_line(f"launch: {line}", file=sys.stderr)


def _speeds(text: str) -> tuple[float, ...]:
    speeds = tuple(map(number, text.split(",")))
    if not all(0 < speed < math.inf for speed in speeds):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of positive numbers, such as 2,1")
    return speeds


def _bucket_elements(text: str) -> int:
    elements = positive_integer(text)
    if not FEWEST_ELEMENTS <= elements <= MOST_ELEMENTS:
        raise argparse.ArgumentTypeError(
            f"{elements} is not from {FEWEST_ELEMENTS} (MXNet's keys are limited) to "
            f"{MOST_ELEMENTS} (2 GB)"
        )
    return elements
