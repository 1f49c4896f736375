"""Ranks on hosts whose files differ end before the first update, all with one reason."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallel.world import LoneWorld
from runtime.errors import ConfigError
from tests.support.thread_world import ThreadWorld, run_ranks
from training import same_data

PATHS = [Path("train.rec"), Path("train.idx")]


def compare(monkeypatch, **contents: str) -> list[str]:
    """What each rank is told; ``contents`` of train.idx on two hosts of two ranks."""
    read: list[int] = []

    def rank_main(world: ThreadWorld) -> str:
        world.local_rank = world.rank % 2
        host = [*contents][world.rank // 2]

        def fingerprint(paths) -> dict[str, str]:
            read.append(world.rank)
            assert paths == PATHS
            return {"train.rec": "9 bytes", "train.idx": contents[host]}

        # One rank computes at a time, until it meets the others.
        monkeypatch.setattr(same_data, "fingerprint", fingerprint)
        monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(nodename=host))
        try:
            same_data.check(PATHS, world)
        except ConfigError as error:
            return str(error)
        return ""

    told = run_ranks(4, rank_main)
    assert sorted(read) == [0, 2], "one rank of each host reads the files"
    return told


def test_all_ranks_are_told_the_same(monkeypatch) -> None:
    assert compare(monkeypatch, left="1 byte", right="1 byte") == [""] * 4
    expected = (
        "right has another train.idx than left: 2 bytes, not 1 byte; copy the data set from one "
        "host to the others"
    )
    assert compare(monkeypatch, left="1 byte", right="2 bytes") == [expected] * 4
    # One rank, and data without files, compare nothing.
    monkeypatch.setattr(same_data, "fingerprint", lambda paths: pytest.fail("nothing to compare"))
    for paths, size in ((PATHS, 1), ([], 2)):
        same_data.check(paths, SimpleNamespace(size=size, local_rank=0))


class Numbered:
    """Images that are their numbers, of one class."""

    def __init__(self, first: int, count: int) -> None:
        self._numbers = range(first, first + count)

    def __len__(self) -> int:
        return len(self._numbers)

    def image(self, index: int) -> tuple[bytes, int]:
        return b"%d" % self._numbers[index], 0

    def fingerprint(self) -> str:
        return str(self._numbers)


SAVED = SimpleNamespace(
    path=Path("run/checkpoints/update-00000008"),
    data=same_data.describe(Numbered(0, 9), LoneWorld()),
)


def go_on(images: Numbered, world: Any, insists: bool = False) -> None:
    described = same_data.describe(images, world)
    same_data.check_saved(SAVED, images, described, world, insists=insists)


@pytest.mark.parametrize(
    ("images", "insists", "more", "counts"),
    [
        (Numbered(0, 12), False, "more", "9 images there, 12 here; "),
        (Numbered(0, 12), True, "more", "9 images there, 12 here; "),
        (Numbered(0, 8), True, "other", "9 images there, 8 here; "),
        (Numbered(5, 12), True, "other", "9 images there, 12 here, of which "),
    ],
)
def test_more_images_and_others_asked_for_are_a_warning(images, insists, more, counts, caplog):
    go_on(Numbered(0, 9), LoneWorld())
    assert not caplog.messages
    go_on(images, LoneWorld(), insists)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"with {more} images than {SAVED.path} was trained on: {counts}" in record.getMessage()


def test_other_images_are_an_error_of_all_ranks() -> None:
    def rank_main(world: ThreadWorld) -> str:
        images = Numbered(5, 9)
        if world.rank:
            images.image = lambda index: pytest.fail("rank 0 reads for all")
        with pytest.raises(ConfigError) as said:
            go_on(images, world)
        return str(said.value)

    expected = (
        "run/checkpoints/update-00000008 was trained on other images: 9 images there, 9 here, of "
        "which some are others; give the data of that run, or another --models-root, or go on with "
        "these images by --resume anyway"
    )
    assert run_ranks(2, rank_main) == [expected] * 2
