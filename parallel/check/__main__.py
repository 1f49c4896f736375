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

from parallel.check.facts import MAKE_AGAIN, UNUSABLE
from parallel.check.survey import Finding, Survey, survey
from parallel.host_lists import is_own_name, read_file, read_list, slots_by_host
from runtime import environment
from runtime.command_line import Parser
from runtime.errors import USER_ERROR_STATUS, print_line, run_program

# Columns of the table, and the width of each.
_SIDE_BY_SIDE, _WIDTH = 2, 40
_SAME = {
    **dict.fromkeys(("Python", "MXNet", "Horovod", "Open MPI"), f"{MAKE_AGAIN} as on the other"),
    "project": "copy one over the other, or update both to the same commit",
}
"""The rows whose cells are the same on all hosts, and the remedy where they differ."""
# Bytes per second; a network of 1 Gbit/s has 118 million.
_LEAST_BANDWIDTH = 50_000_000.0
BRIDGES = ("lo", "docker0", "podman0", "cni0", "lxcbr0", "virbr0")
"""Interfaces that setup-utils/launchers/mpirun leaves out: hosts have equal addresses there."""


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
    ranks = {host: count or 1 for host, count in slots.items()}
    found = survey(ranks, options.models_root.absolute(), nic)
    wrong = findings(found)
    if options.json:
        print(json.dumps({**asdict(found), "findings": [one._asdict() for one in wrong]}, indent=1))
    else:
        verdict = f"{len(wrong)} wrong" if wrong else "healthy: nothing is wrong"
        lines = (f"wrong  {host}: {what}" for host, what in wrong)
        for line in (*table(found), *lines, verdict):
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
    return {**facts.cells, "address": " ".join([address, *interfaces[:1]]), "sends": sends}


def table(survey: Survey) -> Iterator[str]:
    """The lines of the table: a column for each host, two side by side."""
    hosts = list(survey.slots)
    for start in range(0, len(hosts), _SIDE_BY_SIDE):
        shown = hosts[start : start + _SIDE_BY_SIDE]
        columns = [{"": host, **_column(survey, host)} for host in shown]
        for label in max(columns, key=len):
            cells = (column.get(label, "?") for column in columns)
            cut = (cell if len(cell) < _WIDTH else f"{cell[: _WIDTH - 2]}…" for cell in cells)
            yield f"{label:14}{''.join(f'{cell:{_WIDTH}}' for cell in cut)}".rstrip()
        yield ""


def findings(survey: Survey) -> list[Finding]:
    """Everything that is wrong, host by host in the order of the user."""
    found = [*survey.silent]
    for compare in (_versions, _names, _interfaces, _connections):
        found += compare(survey)
    for host, facts in survey.facts.items():
        found += [Finding(host, wrong) for wrong in facts.wrong]
    order = list(survey.slots)
    return sorted(found, key=lambda one: order.index(one.host))


def _versions(survey: Survey) -> Iterator[Finding]:
    """Packages and the project are those of the first host that has them."""
    for row, remedy in _SAME.items():
        cells = {host: facts.cells.get(row, UNUSABLE) for host, facts in survey.facts.items()}
        usable = {host: cell for host, cell in cells.items() if cell != UNUSABLE}
        for host, cell in usable.items():
            other, wanted = next(iter(usable.items()))
            if cell != wanted:
                yield Finding(host, f"{row} is {cell}, but {wanted} on {other}; {remedy}")


def _names(survey: Survey) -> Iterator[Finding]:
    """Horovod tells hosts apart by their names."""
    host_of: dict[str, str] = {}
    for host, facts in survey.facts.items():
        name = facts.hostname
        other = host_of.setdefault(name, host)
        if other != host:
            what = f"its hostname is {name}, as that of {other}: Horovod takes them for one"
            remedy = "hostnamectl set-hostname NAME there, or give it once in -H"
            yield Finding(host, f"{what}; {remedy}")


def _interfaces(survey: Survey) -> Iterator[Finding]:
    """The chosen interface is there; without a choice, none has the same address twice."""
    owners: dict[tuple[str, str], str] = {}
    for host, facts in survey.facts.items():
        if survey.nic is not None:
            if survey.nic not in facts.interfaces:
                what = f"it has no interface {survey.nic} with an IPv4 address"
                has = ", ".join(facts.interfaces)
                yield Finding(host, f"{what}; NIC is the same name on all hosts; it has {has}")
            continue
        for name, address in facts.interfaces.items():
            other = owners.setdefault((name, address), host)
            if other != host and name not in BRIDGES:
                what = f"its interface {name} has the address {address}, as that of {other}"
                reason = "Open MPI would wait for the other there"
                remedy = "choose an interface for all, as in NIC=eth1"
                yield Finding(host, f"{what}: {reason}; {remedy}")


def _connections(survey: Survey) -> Iterator[Finding]:
    """Every host connects to a port of every other one, and no link is slow."""
    for host in survey.facts:
        failed = [pair for pair in survey.pairs if pair.receiver == host and pair.error]
        if failed:
            senders = ", ".join(pair.sender for pair in failed)
            what = f"a port of it is not reached from {senders} ({failed[0].error})"
            remedy = "ranks listen on any port from 1024 up: open them in its firewall"
            yield Finding(host, f"{what}; {remedy}, or choose another interface by NIC")
        pair = survey.slowest(host)
        if pair is not None and pair.bandwidth < _LEAST_BANDWIDTH:
            rate, least = pair.bandwidth / 1e6, _LEAST_BANDWIDTH / 1e6
            what = f"it sends {rate:.3g} MB/s to {pair.receiver}, and {least:.3g} are expected"
            remedy = "look at the link (ethtool, other traffic), or choose a faster one by NIC"
            yield Finding(host, f"{what}; {remedy}")


if __name__ == "__main__":
    run_program(main)
