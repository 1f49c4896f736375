"""The four schemes of exchange: which workers add their gradients, and which may run ahead.

Each process of training is a worker of MXNet's store; those that push send gradients and get
weights. The schemes differ in how many workers' gradients make one update, and in the bound on a
worker's lead over the others. MXNet is not imported here: a wrong name is answered at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from parallel.parameter_server.assignment import Assignment


@dataclass(frozen=True)
class Scheme:
    """How workers exchange gradients and weights."""

    store: str
    """The kind of MXNet's store."""
    is_synchronous: bool = False
    """Whether the servers add the pushes of all workers before they update."""
    has_groups: bool = False
    """Whether the workers of a group add their gradients, and one of them pushes."""
    is_bounded: bool = False
    """Whether a worker waits for the slowest when it is too far ahead."""

    def pushers(self, assignment: Assignment) -> tuple[tuple[int, ...], ...]:
        """The workers of each pusher, by its number; the first of them pushes."""
        if self.has_groups:
            return tuple(tuple(sorted(group)) for group in assignment.groups)
        return tuple((worker,) for worker in range(assignment.num_workers))

    def synchronous_groups(self, assignment: Assignment) -> tuple[tuple[int, ...], ...]:
        """Divide all workers into groups; the batches of a group make one update together."""
        if self.is_synchronous:
            return (tuple(range(assignment.num_workers)),)
        return self.pushers(assignment)


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        # BSP, ASP, SSP and GSP, by their usual names.
        "dist_sync": Scheme("dist_sync", is_synchronous=True),
        "dist_async": Scheme("dist_async"),
        "dist_ssync": Scheme("dist_async", is_bounded=True),
        "dist_gsync": Scheme("dist_async", has_groups=True),
    }
)


def group_of(groups: tuple[tuple[int, ...], ...], worker: int) -> int:
    """The number of the group that contains a worker."""
    return next(number for number, group in enumerate(groups) if worker in group)
