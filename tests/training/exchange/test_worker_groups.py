"""Groups and shares before and after they are made anew."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parallel.parameter_server.place import WORKER, Place, Share
from parallel.parameter_server.schemes import SCHEMES
from training.exchange.worker_groups import Arrangement

COUNT, BATCH = 4000, 10
PLACE = Place(WORKER, "127.0.0.1", 9000, "127.0.0.1", "lo", num_workers=4, num_servers=1)
GROUPS = replace(PLACE, groups=((0, 1), (2, 3)))


def arrangement(place: Place = GROUPS, scheme: str = "dist_gsync") -> Arrangement:
    return Arrangement(SCHEMES[scheme], place, BATCH)


def read(found: Arrangement) -> list[int]:
    """The pictures of an epoch's order that the workers read in it."""
    pictures: list[int] = []
    for worker in range(4):
        portion = found.portion(COUNT, worker)
        pictures += range(portion.first, portion.first + portion.updates_per_epoch * BATCH)
    return sorted(pictures)


def test_before_and_after_every_picture_is_read_once() -> None:
    before = arrangement()
    assert before.updates(COUNT) == [100, 100] and read(before) == list(range(COUNT))
    after = before.anew([2010.0, 502.0, 1990.0, 500.0], COUNT)
    assert after is not None and after.place.groups == ((0, 2), (1, 3))
    pictures = read(after)
    # What is left of each share does not fill a batch; an epoch's order is another one each time.
    assert len(set(pictures)) == len(pictures) > COUNT - 4 * BATCH
    assert after.updates(COUNT) == [159, 40]
    again = after.anew([1000.0, 1000.0, 1000.0, 1000.0], COUNT)
    assert again is not None and again.place.groups == ((0, 1, 2, 3),)
    assert again.updates(COUNT) == [100] and read(again) == list(range(COUNT))


def test_each_worker_finds_its_own_place() -> None:
    after = arrangement().anew([500.0, 2000.0, 500.0, 500.0], COUNT)
    assert after is not None and after.place.groups == ((1,), (0, 2, 3))
    found = [replace(after, place=replace(after.place, worker=worker)) for worker in range(4)]
    assert [one.contributors for one in found] == [3, 1, 3, 3]
    # The group of worker 0, which has left worker 1.
    assert [one.saves for one in found] == [True, False, True, True]


@pytest.mark.parametrize("speeds", [[2000.0, 2000.0, 0.0, 500.0], [2000.0, 2000.0, 1.0, 1.0]])
def test_who_was_not_measured_or_would_read_nothing_keeps_all_as_they_are(speeds) -> None:
    assert arrangement().anew(speeds, COUNT) is None


def test_shares_that_were_given_are_those_of_the_beginning() -> None:
    shares = (Share(0, 0.4), Share(0.4, 0.8), Share(0.8, 0.9), Share(0.9, 1))
    assert arrangement(replace(GROUPS, shares=shares)).updates(COUNT) == [160, 40]


def test_without_shares_bsp_cuts_global_batches() -> None:
    portion = arrangement(PLACE, "dist_sync").portion(COUNT, 2)
    assert (portion.first, portion.stride, portion.offset) == (0, 4 * BATCH, 2 * BATCH)
