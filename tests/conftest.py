"""What all tests share: the real data, which not every machine has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def toolkit_data() -> Path:
    """Return the folder of real data that ``TOOLKIT_DATA`` names; skip the test without it."""
    named = os.environ.get("TOOLKIT_DATA")
    if not named:
        pytest.skip("needs real data: TOOLKIT_DATA is not set")
    folder = Path(named)
    assert folder.is_dir(), f"TOOLKIT_DATA={named} is not a folder"
    return folder
