"""The options of a job with parameter servers, also for ``parallel.autogroup``, and its command.

A command that was written for ``tools/launch.py`` of MXNet-G and MXNet, or for ``dmlc-submit``,
runs here as it is where the option means the same, and is answered in one line where it does not.
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
from runtime.errors import print_line


@dataclass(frozen=True)
class JobOptions:
    """The options of a job, which have their help in ``_add_options``."""

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
    prog, foreign = f"python -m {module}", "options of the launcher"
    parser = Parser(prog=prog, description=purpose, foreign=foreign)
    _add_options(parser)
    values: dict[str, Any] = vars(parser.parse_args(argv))
    if values["command"][:1] == ["--"]:
        del values["command"][0]
    if not values["command"]:
        parser.error("the following arguments are required: command")
    values["servers"] = values["servers"] or values["workers"]
    del values["partition"]
    return JobOptions(**values)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    # Also by the names of ``tools/launch.py`` of MXNet and ``dmlc-submit``.
    count: dict[str, Any] = {"type": positive_integer, "metavar": "N"}
    add("-n", "--num-workers", dest="workers", required=True, help="number of workers", **count)
    servers_help = "number of servers (default: as many as workers)"
    add("-s", "--num-servers", dest="servers", help=servers_help, **count)
    hosts_help = (
        "a line for each worker with its address, ADDRESS:PORT for another port of the ssh "
        "server; with fewer lines they are used in turn, with more only the first; without the "
        "option all workers are on this machine"
    )
    file: dict[str, Any] = {"type": Path, "metavar": "FILE"}
    add("-H", "--hostfile", "--host-file", dest="hosts", help=hosts_help, **file)
    interface_help = "the only network interface on which processes listen (%(default)s)"
    named: dict[str, Any] = {"dest": "interface", "metavar": "NAME", "help": interface_help}
    add("-i", "--dmlc-interface", default=environment.variables().get("NIC") or "lo", **named)
    launcher_help = "start workers and servers on this machine, or on theirs, by ssh (%(default)s)"
    ways: dict[str, Any] = {"choices": ("local", "ssh"), "default": "local"}
    add("--launcher", "--cluster", help=launcher_help, **ways)
    partition_help = "taken and ignored: MXNet-G divides the weights of a server by it"
    add("-p", "--parameter-partition-num", dest="partition", metavar="N", help=partition_help)
    # The files that ``parallel.autogroup`` writes and ``parallel.launch`` reads.
    groups_help = "a line for each group, the addresses of its workers separated by spaces"
    add("--groups", help=groups_help, **file)
    sharding_help = (
        "line k holds start and end of what one worker reads, as parts of 1 (with "
        "--data-allocator 1): the first line is for the worker with the highest address, compared "
        "as text, and so on downwards, as MXNet numbers workers; the log names each"
    )
    add("--data-sharding", help=sharding_help, **file)
    machines_help = "line k: address and relative speed of server k (default: the workers' in turn)"
    add("--server-hosts", help=machines_help, **file)
    # Those of this project alone.
    speeds_help = "relative speed of each server, as its load is to be (default: equal)"
    add("--server-speeds", type=_speeds, default=(), metavar="SPEED,...", help=speeds_help)
    sync_help = (
        "with --launcher ssh: first copy the project, and files or folders of this folder "
        "(--sync=NAME,...), to all hosts, to the same places"
    )
    add("--sync", nargs="?", const=(), type=_names, metavar="NAME,...", help=sync_help)
    tolerate_help = "go on without a worker that died; with dist_async and dist_ssync alone"
    add("--tolerate-workers", action="store_true", help=tolerate_help)
    bucket_help = "largest number of weights that are sent as one array (%(default)s)"
    size: dict[str, Any] = {"type": _bucket_elements, "default": LARGEST, "metavar": "N"}
    add("--bucket-elements", help=bucket_help, **size)
    trace_help = "record there the version of every push and pull, to check staleness by"
    add("--trace", type=Path, metavar="FOLDER", help=trace_help)
    command_help = "what every worker runs: all words from the first that is no option, or after --"
    add("command", nargs=argparse.REMAINDER, help=command_help)


def say(line: str) -> None:
    """Print a line about the job."""
    print_line(f"launch: {line}", file=sys.stderr)


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


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
