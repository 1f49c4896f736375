"""Check hosts before a long run: what differs, what is missing, how they reach each other.

    python -m parallel.check -H ip1:8,ip2:8
    NIC=eth1 python -m parallel.check --hostfile hosts --models-root models/faces-r50

Without hosts, those that run.sh would take are checked: of HOSTS or HOSTFILE, else this one alone.
docs/many-hosts.md has a sample. The exit status is 0 if nothing is wrong, otherwise 2.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Optional

from parallel.check.findings import findings
from parallel.check.survey import survey
from parallel.check.table import table
from parallel.host_lists import ListedHost, read_file, read_list, slots_by_host
from parallel.launch import ssh
from parallel.launch.network_interface import is_own_name
from runtime import environment
from runtime.command_line import Parser
from runtime.errors import USER_ERROR_STATUS, run_program
from runtime.process.terminal import print_line


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the check of a command line, by default this process's; returns its exit status."""
    parser = Parser(
        prog="python -m parallel.check",
        description="Check hosts before a long run: one table, what is wrong, and what to do.",
        epilog="NIC=eth1 chooses the network interface, as for the launchers.",
    )
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument(
        "-H",
        dest="hosts",
        metavar="HOST:N,...",
        help="the hosts with their ranks, as in ip1:8,ip2:8; by default those of run.sh, HOSTS",
    )
    hosts.add_argument(
        *("--hostfile", "-hostfile"),
        type=Path,
        metavar="FILE",
        help='the same, a line "ip1 slots=8" for each',
    )
    parser.add_argument(
        "--models-root",
        type=Path,
        default=Path("models"),
        metavar="DIR",
        help="the folder of the run, whose disk has to have room (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print all that was found out as JSON")
    options = parser.parse_args(argv)
    variables = environment.variables()
    entries = _hosts(options, variables)
    slots = {host: count or 1 for host, count in slots_by_host(entries, is_own_name).items()}
    nic = variables.get("NIC") or None
    with ssh.exits_on_signals():
        found = survey(slots, options.models_root.absolute(), nic)
    wrong = findings(found)
    if options.json:
        print(json.dumps({**asdict(found), "findings": [one._asdict() for one in wrong]}, indent=1))
    else:
        verdict = f"{len(wrong)} wrong" if wrong else "healthy: nothing is wrong"
        for line in (*table(found), "", *(f"wrong  {one}" for one in wrong), verdict):
            print_line(line)
    return USER_ERROR_STATUS if wrong else 0


def _hosts(options: argparse.Namespace, variables: Mapping[str, str]) -> tuple[ListedHost, ...]:
    """The hosts of the options, or else those that run.sh would take."""
    if options.hostfile is not None:
        return read_file(options.hostfile)
    if options.hosts is not None:
        return read_list(options.hosts)
    operator = variables.get("OMPI_MCA_orte_default_hostfile", "none")
    if variables.get("HOSTS"):
        return read_list(variables["HOSTS"])
    if variables.get("HOSTFILE"):
        return read_file(Path(variables["HOSTFILE"]))
    return read_list("localhost") if operator == "none" else read_file(Path(operator))


if __name__ == "__main__":
    run_program(main)
