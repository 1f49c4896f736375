"""The versions that the project's files ask for, and those that are installed."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def pinned(*files: str) -> dict[str, set[str]]:
    """The versions of each package that these files name; each line has to name one."""
    found: dict[str, set[str]] = {}
    for requirement in (one for file in files for one in requirements(file)):
        found.setdefault(normal(requirement.name), set()).add(_version(requirement))
    return found


def pinned_for(python: str, file: str) -> dict[str, str]:
    """The version of each package that a file names for a Python such as 3.9, on Linux."""
    environment = {"python_version": python, "python_full_version": f"{python}.1"}
    named = [
        (normal(one.name), _version(one))
        for one in requirements(file)
        if one.marker is None or one.marker.evaluate(environment)
    ]
    assert len({name for name, _ in named}) == len(named), file
    return dict(named)


def requirements(file: str) -> list[Requirement]:
    """The requirements of a file, without the hashes and the comments of a lock file."""
    lines = (ROOT / file).read_text().splitlines()
    return [Requirement(line.rstrip(" \\")) for line in lines if re.match(r"[^# ]", line)]


def unpinned() -> list[str]:
    """The installed packages that have another version than the files say, or that none names."""
    known = pinned("requirements.lock", "requirements-dev.lock", "requirements-single.lock")
    wrong = []
    for distribution in metadata.distributions():
        name, version = normal(distribution.metadata["Name"]), distribution.version
        # Python itself brings pip along.
        if name != "pip" and version not in known.get(name, set()):
            wrong.append(f"{name}=={version}")
    return wrong


def needed_by(names: set[str]) -> set[str]:
    """These installed packages and all that they need, by the metadata of the installed ones."""
    installed = {normal(one.metadata["Name"]): one for one in metadata.distributions()}
    found: set[str] = set()
    waiting = {*names}
    while waiting:
        name = waiting.pop()
        found.add(name)
        for requirement in map(Requirement, installed[name].requires or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting |= {normal(requirement.name)} - found
    return found


def normal(name: str) -> str:
    """The name as the index has it; MXNet's builds for GPUs (mxnet-cu112) stand for MXNet."""
    return re.sub(r"^mxnet-cu\d+$", "mxnet", re.sub(r"[-_.]+", "-", name).lower())


def _version(requirement: Requirement) -> str:
    (one,) = requirement.specifier
    assert one.operator == "==" and "*" not in one.version, str(requirement)
    return one.version
