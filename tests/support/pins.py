"""The versions that the project's files ask for, and those that are installed."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib import metadata

from packaging.requirements import Requirement

from tests.support.launch import ROOT as ROOT


def pinned(*files: str) -> dict[str, set[str]]:
    """The versions of each package that these files name; each line has to name one."""
    found: dict[str, set[str]] = defaultdict(set)
    for requirement in (one for file in files for one in requirements(file)):
        found[normal(requirement.name)].add(_version(requirement))
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
    found = [(normal(one.metadata["Name"]), one.version) for one in metadata.distributions()]
    # Python itself brings pip along.
    wrong = [pair for pair in found if pair[0] != "pip" and pair[1] not in known.get(pair[0], ())]
    return ["==".join(pair) for pair in wrong]


def needed_by(names: set[str]) -> set[str]:
    """These installed packages and all that they need, by the metadata of the installed ones."""
    installed = {normal(one.metadata["Name"]): one for one in metadata.distributions()}
    found = [*names]
    for name in found:
        needed = map(Requirement, installed[name].requires or [])
        used = [one for one in needed if not one.marker or one.marker.evaluate({"extra": ""})]
        found += {normal(one.name) for one in used}.difference(found)
    return {*found}


def normal(name: str) -> str:
    """The name as the index has it; MXNet's builds for GPUs (mxnet-cu112) stand for MXNet."""
    return re.sub(r"^mxnet-cu\d+$", "mxnet", re.sub(r"[-_.]+", "-", name).lower())


def _version(requirement: Requirement) -> str:
    (one,) = requirement.specifier
    assert one.operator == "==" and "*" not in one.version, str(requirement)
    return one.version
