"""Two hosts, and a project for parameter servers there: made when a module wants them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import hosts
from tests.support.hosts import TwoHosts
from tests.support.server_job import assert_nothing_left, copy_product


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder need the hosts, and run by ``make hosts`` alone."""
    why_not = hosts.missing()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.hosts)
            item.add_marker(pytest.mark.skipif(why_not is not None, reason=str(why_not)))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    with TwoHosts(tmp_path_factory.mktemp("hosts") / "hosts") as started:
        yield started


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The product, and the files of a job with parameter servers, in a folder with a space."""
    folder = tmp_path_factory.mktemp("project") / "two words"
    copy_product(folder)
    return folder


@pytest.fixture
def nothing_is_left(two: TwoHosts) -> Iterator[None]:
    """After a test, sshd alone runs on each host."""
    yield
    assert_nothing_left(two)
