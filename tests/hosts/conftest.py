"""Two hosts, and those of ``parallel.check``, started when a test of a module wants them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.check_cluster import Cluster
from tests.support.hosts import TwoHosts


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    with TwoHosts(tmp_path_factory.mktemp("hosts") / "hosts") as started:
        yield started


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("check")
    private = folder / "private"
    private.mkdir()
    with TwoHosts(folder / "hosts", private) as two:
        made = Cluster(two, folder, private)
        made.make()
        yield made
