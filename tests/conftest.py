"""What all tests share: signals that reach what they start, and real data if there is any."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launch import clean_environment, keep_ignored_signals_from_children

# Folders of tests that `make test-all` runs: of what stands around the product, and campaigns.
_THOROUGH = "benchmarks endurance examples faults mutants newcomer pythons soak".split()
# Marks of tests that other commands run.
_ELSEWHERE = "cleaning device documents grouping hosts kernels measurements models".split()
# Variables of pytest, and of libraries that a test may be the first to import.
_THEIRS = ("PYTEST_CURRENT_TEST", "KMP_", "OPENCV_", "LD_LIBRARY_PATH")
keep_ignored_signals_from_children()
# Some machines set it for all programs: what a test starts shall not rely on that.
os.environ.pop("PYTHONUNBUFFERED", None)
# Before libgomp is loaded. Tests that run at the same time share processors; docs/performance.md
# says what it costs if threads of an operator spin as long as by default.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


# Before pytest chooses by marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of some folders, and begin with the modules that start ranks or wait.

    ``make test`` runs two modules at a time, so what is short comes last. Tests of a module
    stay together, in their order: they share what they have started.
    """
    for item in items:
        folder = item.path.relative_to(config.rootpath / "tests").parts[0]
        if folder in _THOROUGH and not any(map(item.get_closest_marker, _ELSEWHERE)):
            item.add_marker("thorough")
    marks = ("launcher", "waits")
    long = {item.path for item in items if any(map(item.get_closest_marker, marks))}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(autouse=True)
def environment_stays() -> Iterator[None]:
    """Fail a test that leaves environment variables behind: programs of later ones would obey."""
    before = clean_environment()
    yield
    after = clean_environment()
    changed = {name for name, _ in before.items() ^ after.items() if not name.startswith(_THEIRS)}
    assert changed == set()


@pytest.fixture(scope="session")
def toolkit_data() -> Path:
    """Return the folder of real data that ``TOOLKIT_DATA`` names; skip the test without it."""
    named = os.environ.get("TOOLKIT_DATA")
    if not named:
        pytest.skip("needs real data: TOOLKIT_DATA is not set")
    folder = Path(named)
    assert folder.is_dir(), f"TOOLKIT_DATA={named} is not a folder"
    return folder


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Leave out what threads of earlier tests report about refused connections."""
    # The threads themselves: a new one may get the number of one that has ended.
    before = {*threading.enumerate()} - {threading.current_thread()}

    def is_of_this_test(record: logging.LogRecord) -> bool:
        others = threading.current_thread() in before
        return not (others and record.name.endswith(".connections"))

    caplog.handler.addFilter(is_of_this_test)
    yield caplog
    caplog.handler.removeFilter(is_of_this_test)
