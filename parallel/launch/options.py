"""The options of a job with parameter servers, also for ``parallel.autogroup``, and its command.

A command that was written for ``tools/launch.py`` of MXNet-G and MXNet, or for ``dmlc-submit``,
runs here as it is where the option means the same, and is answered in one line where it does not.
docs/porting.md has the same tables.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from parallel.launch.cluster_files import number
from parallel.parameter_server.buckets import LARGEST
from runtime import environment
from runtime.command_line import Parser, positive_integer, refuse_foreign
from runtime.errors import ConfigError, did_you_mean
from runtime.process.terminal import print_line

# In "python -u PROGRAM" the program is the third word; later ones are its arguments.
_PROGRAM_BEFORE = 3

_HINTS = {
    "--sync-dst-dir --files --archives --auto-file-cache": (
        "all hosts have the project in the same folder: give --sync, which copies it there, or "
        "--sync=NAME,... for files and folders of this folder as well"
    ),
    "--env*": (
        "write NAME=VALUE before the launcher; those that libraries read go to all processes, such "
        "as MXNET_... and OMP_..., and those that SEND_VARIABLES=NAME,... names"
    ),
    "--p3": "leave it out: weights are sent in buckets; see --bucket-elements",
    "--*-cores --*-memory": (
        "a process takes what its machine has; processors are shared by OMP_NUM_THREADS"
    ),
    "--log-*": "leave it out: the launcher prints to the terminal, and each worker writes logs/",
    "--host-ip": "give -i, the interface on which the processes reach each other",
    "--local-num-attempt": "leave it out: a process that died ends the job; see --tolerate-workers",
    "--jobname --queue --hdfs-* --sge-* --yarn-* --mesos-* --slurm-* --kube-* --ship-libcxx": (
        "leave it out: jobs start by --launcher local or ssh alone"
    ),
}
FOREIGN = {name: hint for names, hint in _HINTS.items() for name in names.split()}
"""Options of these launchers, as patterns, and what to type here instead."""

PROGRAMS = {
    "train_cifar10.py": "classify.py --dataset cifar10_grouping",
    "train_cifar100.py": "classify.py --dataset cifar100_grouping",
    "train_cifar10_mirroring.py": "classify.py --dataset cifar10_grouping",
    "train_cifar10_resnet.py": "classify.py --dataset cifar10_grouping_resnet",
    "train_resnet.py": "classify.py --dataset cifar10_grouping_resnet (or imagenet)",
    "train_imagenet.py": "classify.py --dataset imagenet",
    "train_mnist.py": "classify.py --dataset mnist",
}
"""Programs that MXNet-G's scripts start, and what does the same here."""


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
    """The command that every worker runs."""
    groups: Optional[Path] = None
    data_sharding: Optional[Path] = None
    tolerate_workers: bool = False
    bucket_elements: int = LARGEST
    trace: Optional[Path] = None
    server_hosts: Optional[Path] = None
    sync: Optional[tuple[str, ...]] = None
    """Files that are copied to all hosts together with the project; None: nothing is copied."""


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
        type=lambda text: tuple(filter(None, text.split(","))),
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


def parse(parser: Parser, argv: Optional[Sequence[str]]) -> dict[str, Any]:
    """Return the options of a command line that ``add_options`` has added, with their command.

    Args:
        parser: with these options and others.
        argv: the words; by default those of this process.

    Raises:
        ConfigError: an option is wrong, or one of the launcher stands in the command.
    """
    options, unknown = parser.parse_known_args(argv)
    names, command = parser.names(), options.command
    if unknown:
        typed = [word.split("=")[0] for word in unknown]
        refuse_foreign(typed, FOREIGN)
        close = did_you_mean(typed[0], names)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{close}")
    is_divided = command[:1] == ["--"]
    if is_divided:
        del command[0]
    if not command:
        parser.error("the following arguments are required: command")
    _check_program(command)
    for word in [] if is_divided else command:
        if word.partition("=")[0] in names:
            first = " ".join(command[:2])
            raise ConfigError(
                f"{word} stands after the command {first!r}: put it before the command, or, if it "
                f"is not the launcher's, put -- there, as in -n 4 -s 2 -- {first} {word} ..."
            )
    values: dict[str, Any] = vars(options)
    values["servers"] = options.servers or options.workers
    if (partition := values.pop("partition")) is not None:
        say(f"-p {partition} makes no difference: see --server-speeds and --bucket-elements")
    return values


def say(line: str) -> None:
    """Print a line about the job."""
    print_line(f"launch: {line}", file=sys.stderr)


def _speeds(text: str) -> tuple[float, ...]:
    speeds = tuple(map(number, text.split(",")))
    if not all(0 < speed < math.inf for speed in speeds):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of positive numbers, such as 2,1")
    return speeds


def _check_program(command: Sequence[str]) -> None:
    """Refuse a command whose program is one of MXNet-G's and not a file of this folder.

    Raises:
        ConfigError: with the program to type here.
    """
    for word in command[:_PROGRAM_BEFORE]:
        here = PROGRAMS.get(Path(word).name)
        if here and not os.path.exists(word):
            raise ConfigError(
                f"{word} is not in this folder; type {here} in its place, without another "
                "--dataset or --data-type"
            )
