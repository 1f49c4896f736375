"""Ranks on hosts whose files differ end before the first update, all with one reason."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from runtime.errors import ConfigError
from tests.support.thread_world import ThreadWorld, run_ranks
from training import same_data

# Two hosts of two ranks.
HOSTS = ["left", "left", "right", "right"]
PATHS = [Path("train.rec"), Path("train.idx")]


def compare(monkeypatch, contents: dict[str, str]) -> list[str]:
    """What each rank is told; ``contents`` of train.idx by host."""
    read: list[int] = []

    def rank_main(world: ThreadWorld) -> str:
        world.local_rank = world.rank % 2
        host = HOSTS[world.rank]

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


def test_equal_hosts(monkeypatch) -> None:
    assert compare(monkeypatch, {"left": "1 byte", "right": "1 byte"}) == [""] * 4


def test_all_ranks_are_told_the_same(monkeypatch) -> None:
    expected = (
        "right has another train.idx than left: 2 bytes, not 1 byte; copy the data set from one "
        "host to the others"
    )
    assert compare(monkeypatch, {"left": "1 byte", "right": "2 bytes"}) == [expected] * 4


@pytest.mark.parametrize(("paths", "size"), [(PATHS, 1), ([], 2)])
def test_one_rank_and_data_without_files_compare_nothing(paths, size, monkeypatch) -> None:
    monkeypatch.setattr(same_data, "fingerprint", lambda paths: pytest.fail("nothing to compare"))
    same_data.check(paths, SimpleNamespace(size=size, local_rank=0))
