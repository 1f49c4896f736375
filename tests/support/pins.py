"""The versions that the project's files ask for, and those that are installed."""

from __future__ import annotations

import re
from importlib import metadata

from packaging.requirements import Requirement

from tests.support.launch import ROOT as ROOT


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
    files = ("requirements.lock", "requirements-dev.lock", "requirements-single.lock")
    known = {(normal(one.name), _version(one)) for file in files for one in requirements(file)}
    found = [(normal(one.metadata["Name"]), one.version) for one in metadata.distributions()]
    # Python itself brings pip along.
    wrong = [pair for pair in found if pair[0] != "pip" and pair not in known]
    return ["==".join(pair) for pair in wrong]


def normal(name: str) -> str:
    """The name as the index has it; MXNet's builds for GPUs (mxnet-cu112) stand for MXNet."""
    return re.sub(r"^mxnet-cu\d+$", "mxnet", re.sub(r"[-_.]+", "-", name).lower())


def _version(requirement: Requirement) -> str:
    (one,) = requirement.specifier
    assert one.operator == "==" and "*" not in one.version, str(requirement)
    return one.version
