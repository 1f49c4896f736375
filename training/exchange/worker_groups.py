"""Who trains with whom over parameter servers, and who reads what.

It follows from the scheme, and from the groups and shares of the job; and with ``--rebalance`` from
what the workers have measured meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Optional

from data.batches import epoch_part
from data.batches.epoch_part import Portion
from parallel import grouping
from parallel.parameter_server.place import Place
from parallel.parameter_server.schemes import Scheme, team_of


@dataclass(frozen=True)
class Arrangement:
    """Groups and shares, as one worker sees them."""

    scheme: Scheme
    place: Place
    """Of this worker; without shares all read as much."""
    batch_size: int
    """Pictures per worker and step."""

    @property
    def contributors(self) -> int:
        """The workers whose batches make an update together with this one's."""
        teams = self.scheme.teams(self.place)
        return len(teams[team_of(teams, self.place.worker)])

    @property
    def saves(self) -> bool:
        """Whether this worker validates and saves: worker 0 and its group."""
        pushers = self.scheme.pushers(self.place)
        return team_of(pushers, self.place.worker) == team_of(pushers, 0)

    def portion(self, count: int, worker: Optional[int] = None) -> Portion:
        """What a worker, this one by default, reads of an epoch of ``count`` pictures."""
        worker = self.place.worker if worker is None else worker
        if self.scheme.is_synchronous and not self.place.shares:
            # As with Horovod, whose updates these are.
            return epoch_part.of_rank(count, self.batch_size, worker, self.place.num_workers)
        teams = self.scheme.teams(self.place)
        shares = self.place.shares or epoch_part.equal_shares(self.place.num_workers)
        together = teams[team_of(teams, worker)]
        return epoch_part.of_worker(count, self.batch_size, worker, shares, together)

    def updates(self, count: int) -> list[int]:
        """Updates of the weights by each team in an epoch of ``count`` pictures."""
        teams = self.scheme.teams(self.place)
        return [self.portion(count, team[0]).updates_per_epoch for team in teams]

    def anew(self, speeds: Sequence[float], count: int) -> Optional[Arrangement]:
        """Groups and shares by the speeds of all workers.

        Args:
            speeds: images/s of each, 0 if it has not been measured.
            count: pictures of an epoch.

        Returns:
            None if a worker was not measured, or would have less than a batch.
        """
        if min(speeds) <= 0:
            return None
        groups = grouping.group(speeds)
        shares = grouping.shares(groups, speeds)
        found = replace(self, place=replace(self.place, groups=groups, shares=shares))
        return found if all(found.updates(count)) else None

    def __str__(self) -> str:
        groups = " ".join(",".join(map(str, group)) for group in self.place.groups)
        shares = " ".join(f"{share.end - share.start:.3f}" for share in self.place.shares)
        return f"groups {groups}, shares {shares or 'equal'}"
