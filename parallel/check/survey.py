"""What all hosts say and what they measure between them, of which findings and table are made."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, TypeVar

from parallel.check.facts import Facts
from parallel.check.probe import MARK
from parallel.host_lists import is_own_name
from parallel.launch import ssh

_Read = TypeVar("_Read")
# Takes the place of a host where their number is odd.
_NOBODY = ""
# As many hosts as ssh.answers() asks at once: both of a couple have to run at the same time.
_COUPLES_AT_ONCE = 32


class Finding(NamedTuple):
    """Something that is wrong."""

    host: str
    what: str
    """With the remedy."""


class Pair(NamedTuple):
    """A connection of one host to another."""

    sender: str
    receiver: str
    bandwidth: float
    """Bytes per second."""
    error: str = ""
    """Why there is no connection."""


@dataclass(frozen=True)
class Survey:
    """What was found out; hosts that do not answer have no facts."""

    slots: Mapping[str, int]
    """The ranks of each host, in the order of the user."""
    nic: Optional[str] = None
    """The interface that is chosen for all hosts."""
    facts: dict[str, Facts] = field(default_factory=dict)
    pairs: list[Pair] = field(default_factory=list)
    silent: list[Finding] = field(default_factory=list)
    """Of hosts that have not answered."""

    def address_of(self, receiver: str, sender: str) -> Optional[str]:
        """The address on which one host reaches another: of the chosen interface, or ssh's."""
        if self.nic is not None:
            has_both = self.nic in self.facts[sender].interfaces
            return self.facts[receiver].interfaces.get(self.nic) if has_both else None
        return self.facts[receiver].ssh_server or self.facts[sender].ssh_client

    def slowest(self, sender: str) -> Optional[Pair]:
        """The slowest of all connections of a host."""
        reached = [pair for pair in self.pairs if pair.sender == sender and not pair.error]
        return min(reached, key=lambda pair: pair.bandwidth, default=None)


def survey(slots: Mapping[str, int], models_root: Path, nic: Optional[str]) -> Survey:
    """Ask all hosts at the same time, then have them measure in pairs; no host stops the others.

    Raises:
        ConfigError: this machine has no ssh.
    """
    found = Survey(slots, nic)
    run = {"models_root": str(models_root), "hosts": len(slots)}
    requests = {host: {**run, "ranks": ranks} for host, ranks in slots.items()}
    found.facts.update(_answers(found, requests, lambda _, answer: Facts(**answer)))
    # As in a tournament: each host meets each other one, and one at a time.
    circle = [*found.facts, *[_NOBODY] * (len(found.facts) % 2)]
    for _ in circle[1:]:
        out = {_NOBODY, *(one.host for one in found.silent)}
        halves = circle[: len(circle) // 2], reversed(circle)
        couples = [couple for couple in zip(*halves) if not out & {*couple}]
        for start in range(0, len(couples), _COUPLES_AT_ONCE):
            _measure(found, couples[start : start + _COUPLES_AT_ONCE])
        circle.insert(1, circle.pop())
    return found


def _measure(found: Survey, couples: Sequence[tuple[str, str]]) -> None:
    """Have the hosts of each couple send to each other, all at the same time."""
    key = secrets.token_hex(32)
    partners = {**dict(couples), **{second: first for first, second in couples}}

    def place(receiver: str, sender: str) -> Optional[tuple[str, int]]:
        address = found.address_of(receiver, sender)
        # Without the chosen interface, there is a finding already.
        return (address, found.facts[receiver].port) if address else None

    requests = {
        host: {"key": key, "listen": place(host, other), "send": place(other, host)}
        for host, other in partners.items()
    }

    def read(sender: str, answer: Any) -> Pair:
        return Pair(sender, partners[sender], float(answer["bandwidth"]), str(answer["error"]))

    answers = _answers(found, requests, read)
    found.pairs.extend(pair for host, pair in answers.items() if requests[host]["send"])


def _answers(
    found: Survey,
    requests: Mapping[str, Mapping[str, Any]],
    read: Callable[[str, Any], _Read],
) -> dict[str, _Read]:
    """Start the probe on hosts with a request for each; failures are findings.

    Returns:
        What ``read`` has made of the answer of each host that has given one.
    """
    words = (sys.executable, "-m", "parallel.check.probe")
    path = ssh.variables_with_programs()["PATH"]
    commands, given = {}, {}
    for host, request in requests.items():
        given[host] = json.dumps(request).encode()
        if is_own_name(host):
            # The user's own login sets the variable; the probe would take that address for its own.
            commands[host] = ["env", "-u", "SSH_CONNECTION", f"PATH={path}", *words]
        else:
            commands[host] = ssh.command(host, words)
            given[host] = ssh.first_input({}) + given[host]

    def judge(host: str, answer: ssh.Answer) -> Optional[_Read]:
        # A login shell may print lines first.
        _, mark, text = answer.output.decode(errors="replace").partition(MARK)
        try:
            if mark:
                return read(host, json.loads(text))
            what = (
                f"the check does not run there ({answer.reason[:200]}); copy this project to the "
                f"same path, {Path.cwd()}, and make env there"
            )
            if answer.status == ssh.STATUS_OF_SSH:
                what = str(ssh.unreachable(host, answer.reason)).removeprefix(f"host {host}: ")
        except (KeyError, RecursionError, TypeError, ValueError) as error:
            reason = str(error)[:60]
            what = f"its answer is not understood ({reason}); copy this project to it again"
        found.silent.append(Finding(host, what))
        return None

    ended = ssh.answers(commands, given, ssh.ANSWER_SECONDS).items()
    judged = ((host, judge(host, answer)) for host, answer in ended)
    return {host: answer for host, answer in judged if answer is not None}
