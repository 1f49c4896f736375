"""The real faces."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def lfw_folder(toolkit_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked LFW faces, a folder per person."""
    target = tmp_path_factory.mktemp("lfw")
    with tarfile.open(toolkit_data / "lfw_112x112.tar.gz") as archive:
        archive.extractall(target)
    return target / "lfw-112X112"
