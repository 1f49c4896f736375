"""Two hosts, each with a folder of its own, and a project there: made when a module wants them."""


import pytest

from tests.hosts.jobs import assert_nothing_left, copy_product
from tests.hosts.two_hosts import TwoHosts


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory):
    """A folder that each host has for itself, with a name that a shell has to be told of."""
    folder = tmp_path_factory.mktemp("nothing shared") / "own disk"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def two(private, tmp_path_factory: pytest.TempPathFactory):
    with TwoHosts(tmp_path_factory.mktemp("hosts") / "hosts", private) as started:
        yield started


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory):
    """The product, and the files of a job with parameter servers, in a folder with a space."""
    folder = tmp_path_factory.mktemp("project") / "two words"
    copy_product(folder)
    return folder


@pytest.fixture
def nothing_is_left(two: TwoHosts):
    yield
    assert_nothing_left(two)
