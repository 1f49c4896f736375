"""Which workers make an update together over parameter servers, and what each reads.

Both follow from the scheme and from the groups and shares of the job, and with ``--rebalance`` from
the speeds that the workers have measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Optional

from data.batches.position import EpochPart, equal_shares
from parallel import grouping
from parallel.parameter_server.assignment import Assignment
from parallel.parameter_server.schemes import Scheme, group_of


@dataclass(frozen=True)
class WorkerGroups:
    """Groups and shares, as one worker sees them."""

    scheme: Scheme
    assignment: Assignment
    """Of this worker; without shares all read as much."""
    batch_size: int
    """Images per worker and step."""

    @property
    def contributors(self) -> int:
        """The workers whose batches make an update together with this one's."""
        groups = self.scheme.synchronous_groups(self.assignment)
        return len(groups[group_of(groups, self.assignment.worker)])

    @property
    def saves(self) -> bool:
        """True if this worker validates and saves: worker 0 and its group."""
        pushers = self.scheme.pushers(self.assignment)
        return group_of(pushers, self.assignment.worker) == group_of(pushers, 0)

    def epoch_part(self, count: int, worker: Optional[int] = None) -> EpochPart:
        """Return the part of ``count`` images that a worker reads; this one by default."""
        worker = self.assignment.worker if worker is None else worker
        if self.scheme.is_synchronous and not self.assignment.shares:
            # As with Horovod, whose updates these are.
            return EpochPart.of_rank(count, self.batch_size, worker, self.assignment.num_workers)
        groups = self.scheme.synchronous_groups(self.assignment)
        shares = self.assignment.shares or equal_shares(self.assignment.num_workers)
        group = groups[group_of(groups, worker)]
        return EpochPart.of_worker(count, self.batch_size, worker, shares, group)

    def updates(self, count: int) -> list[int]:
        """Updates of the weights by each group in an epoch of ``count`` images."""
        groups = self.scheme.synchronous_groups(self.assignment)
        return [self.epoch_part(count, group[0]).updates_per_epoch for group in groups]

    def anew(self, speeds: Sequence[float], count: int) -> Optional[WorkerGroups]:
        """Groups and shares by the speeds of all workers.

        Args:
            speeds: images/s of each, 0 if it has not been measured.
            count: images of an epoch.

        Returns:
            None if a worker was not measured, or would have less than a batch.
        """
        if min(speeds) <= 0:
            return None
        groups = grouping.group(speeds)
        shares = grouping.shares(groups, speeds)
        found = replace(self, assignment=replace(self.assignment, groups=groups, shares=shares))
        return found if all(found.updates(count)) else None

    def __str__(self) -> str:
        groups = " ".join(",".join(map(str, group)) for group in self.assignment.groups)
        shares = " ".join(f"{share.end - share.start:.3f}" for share in self.assignment.shares)
        return f"groups {groups}, shares {shares or 'equal'}"
