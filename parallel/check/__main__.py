"""Check hosts before a long run: what differs, what is missing, how they reach each other.

    python -m parallel.check -H ip1:8,ip2:8
    NIC=eth1 python -m parallel.check --hostfile hosts --models-root models/faces-r50

Without hosts, this one alone is checked.
docs/many-hosts.md has a sample. The exit status is 0 if nothing is wrong, otherwise 2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Optional

from parallel.check.findings import findings
from parallel.check.survey import Survey, survey
from parallel.host_lists import read_file, read_list, slots_by_host
from parallel.launch import ssh
from parallel.launch.network_interface import is_own_name
from runtime import environment
from runtime.command_line import Parser
from runtime.errors import USER_ERROR_STATUS, run_program
from runtime.process.terminal import print_line

WIDTH = 100
_LABEL = 14


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the check of a command line, by default this process's; returns its exit status."""
    parser = Parser(
        prog="python -m parallel.check",
        description="Check hosts before a long run: one table, what is wrong, and what to do.",
        epilog="NIC=eth1 chooses the network interface, as for the launchers.",
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "-H",
        dest="hosts",
        default="localhost",
        metavar="HOST:N,...",
        help="the hosts with their ranks, as in ip1:8,ip2:8; by default this one alone",
    )
    either.add_argument(
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
    hosts = read_file(options.hostfile) if options.hostfile else read_list(options.hosts)
    slots = slots_by_host(hosts, is_own_name)
    nic = environment.variables().get("NIC") or None
    with ssh.exits_on_signals():
        ranks = {host: count or 1 for host, count in slots.items()}
        found = survey(ranks, options.models_root.absolute(), nic)
    wrong = findings(found)
    if options.json:
        print(json.dumps({**asdict(found), "findings": [one._asdict() for one in wrong]}, indent=1))
    else:
        verdict = f"{len(wrong)} wrong" if wrong else "healthy: nothing is wrong"
        for line in (*table(found), "", *(f"wrong  {one}" for one in wrong), verdict):
            print_line(line)
    return USER_ERROR_STATUS if wrong else 0


def _column(survey: Survey, host: str) -> dict[str, str]:
    """The cells of a host, by the names of the rows; none if it has not answered."""
    facts = survey.facts.get(host)
    if facts is None:
        return {}
    # The host's address for the other hosts, and the interface that has it.
    seen = (survey.address_of(host, other) for other in survey.facts if other != host)
    address = next(filter(None, seen), facts.ssh_server) or "-"
    interfaces = [name for name, own in facts.interfaces.items() if own == address]
    slowest = survey.slowest(host)
    sends = f"{slowest.bandwidth / 1e6:.0f} MB/s {slowest.receiver}" if slowest else "-"
    fixed = {"hostname": facts.hostname, "address": " ".join([address, *interfaces[:1]])}
    return {**fixed, **facts.cells, "sends": sends}


def table(survey: Survey) -> Iterator[str]:
    """The lines of the table: a column for each host, two or three side by side."""
    hosts = list(survey.slots)
    width = 40 if len(hosts) <= 2 else 28
    fitting = (WIDTH - _LABEL) // width
    for start in range(0, len(hosts), fitting):
        shown = hosts[start : start + fitting]
        columns = [_column(survey, host) for host in shown]
        labels = max(columns, key=len)
        yield from [""] if start else []
        for label, cells in [
            ("", shown),
            *((label, [column.get(label, "?") for column in columns]) for label in labels),
        ]:
            cut = (cell if len(cell) < width else f"{cell[: width - 2]}…" for cell in cells)
            yield f"{label:{_LABEL}}{''.join(f'{cell:{width}}' for cell in cut)}".rstrip()


if __name__ == "__main__":
    run_program(main)
