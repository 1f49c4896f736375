from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def untouched_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    yield
    assert (list(root.handlers), root.level) == before
