"""The four schemes: who adds gradients together, and who may run ahead of whom.

One mechanism makes them all. Every worker is a worker of MXNet's store; whoever pushes sends
gradients and gets weights. The schemes differ in how many workers' gradients make one update, and
in what bounds the lead of a worker over the others.

MXNet is not imported here: a wrong name is answered at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from parallel.parameter_server.assignment import Assignment


@dataclass(frozen=True)
class Scheme:
    """How workers exchange gradients and weights."""

    title: str
    """Its usual short name."""
    store: str
    """MXNet's store; its own check takes any name for dist_sync."""
    is_synchronous: bool = False
    """Whether the servers add the pushes of all workers before they update."""
    has_groups: bool = False
    """Whether the workers of a group add their gradients, and one of them pushes."""
    is_bounded: bool = False
    """Whether a worker waits for the slowest when it is too far ahead."""

    def pushers(self, assignment: Assignment) -> tuple[tuple[int, ...], ...]:
        """The workers behind each pusher, by its number; the first of them pushes."""
        if self.has_groups:
            return tuple(tuple(sorted(group)) for group in assignment.groups)
        return tuple((worker,) for worker in range(assignment.num_workers))

    def teams(self, assignment: Assignment) -> tuple[tuple[int, ...], ...]:
        """The workers whose gradients make one update; each worker is in one of these."""
        if self.is_synchronous:
            return (tuple(range(assignment.num_workers)),)
        return self.pushers(assignment)


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "dist_sync": Scheme("BSP", "dist_sync", is_synchronous=True),
        "dist_async": Scheme("ASP", "dist_async"),
        "dist_ssync": Scheme("SSP", "dist_async", is_bounded=True),
        "dist_gsync": Scheme("GSP", "dist_async", has_groups=True),
    }
)


def team_of(teams: tuple[tuple[int, ...], ...], worker: int) -> int:
    """The number of the team that a worker is in."""
    return next(number for number, team in enumerate(teams) if worker in team)
