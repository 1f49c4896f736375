"""Groups and shares before and after they are made anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallel.parameter_server.assignment import WORKER, Assignment, Share
from parallel.parameter_server.schemes import SCHEMES
from training.exchange.worker_groups import WorkerGroups

COUNT, BATCH = 4000, 10
PLACE = Assignment(WORKER, "127.0.0.1", 9000, "127.0.0.1", "lo", num_workers=4, num_servers=1)
GROUPS = replace(PLACE, groups=((0, 1), (2, 3)))


def groups(assignment: Assignment = GROUPS, scheme: str = "dist_gsync") -> WorkerGroups:
    return WorkerGroups(SCHEMES[scheme], assignment, BATCH)


def read(found: WorkerGroups) -> list[int]:
    """The images of an epoch's order that the workers read in it."""
    images: list[int] = []
    for worker in range(4):
        epoch_part = found.epoch_part(COUNT, worker)
        images += range(epoch_part.first, epoch_part.first + epoch_part.updates_per_epoch * BATCH)
    return sorted(images)


def test_before_and_after_every_image_is_read_once() -> None:
    before = groups()
    assert before.updates(COUNT) == [100, 100] and read(before) == list(range(COUNT))
    after = before.anew([2010.0, 502.0, 1990.0, 500.0], COUNT)
    assert after is not None and after.assignment.groups == ((0, 2), (1, 3))
    images = read(after)
    # What is left of each share does not fill a batch; an epoch's order is another one each time.
    assert len(set(images)) == len(images) > COUNT - 4 * BATCH
    assert after.updates(COUNT) == [159, 40]
    again = after.anew([1000.0, 1000.0, 1000.0, 1000.0], COUNT)
    assert again is not None and again.assignment.groups == ((0, 1, 2, 3),)
    assert again.updates(COUNT) == [100] and read(again) == list(range(COUNT))


def test_each_worker_finds_its_own_place() -> None:
    after = groups().anew([500.0, 2000.0, 500.0, 500.0], COUNT)
    assert after is not None and after.assignment.groups == ((1,), (0, 2, 3))
    places = (replace(after.assignment, worker=worker) for worker in range(4))
    found = [replace(after, assignment=place) for place in places]
    assert [one.contributors for one in found] == [3, 1, 3, 3]
    # The group of worker 0, which has left worker 1.
    assert [one.saves for one in found] == [True, False, True, True]


@pytest.mark.parametrize("speeds", [[2000.0, 2000.0, 0.0, 500.0], [2000.0, 2000.0, 1.0, 1.0]])
def test_who_was_not_measured_or_would_read_nothing_keeps_all_as_they_are(speeds) -> None:
    assert groups().anew(speeds, COUNT) is None


def test_shares_that_were_given_are_those_of_the_beginning() -> None:
    shares = (Share(0, 0.4), Share(0.4, 0.8), Share(0.8, 0.9), Share(0.9, 1))
    assert groups(replace(GROUPS, shares=shares)).updates(COUNT) == [160, 40]
    # Without shares, BSP cuts global batches.
    epoch_part = groups(PLACE, "dist_sync").epoch_part(COUNT, 2)
    assert (epoch_part.first, epoch_part.stride, epoch_part.offset) == (0, 4 * BATCH, 2 * BATCH)
