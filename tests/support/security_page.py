"""The tables of docs/security.md: which process of which job listens at which addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.launch import ROOT

ONE_HOST, HOSTS = "## Ports of a job on one host", "## Ports of a job on several hosts"
_ROW = re.compile(r"^\| (.+?) \| (.+?) \| (.+?) \|", re.MULTILINE)


def table(title: str) -> dict[str, dict[str, set[str]]]:
    """Addresses by job and process; a process that listens nowhere has none."""
    section = (ROOT / "docs/security.md").read_text(encoding="utf-8").split(title + "\n")[1]
    # The first table, to the empty line after it.
    rows = section[section.index("\n| job ") :].split("\n\n")[0]
    found: dict[str, dict[str, set[str]]] = {}
    for jobs, process, addresses in _ROW.findall(rows)[1:]:
        for job in re.findall("`(.+?)`", jobs):
            of_job = found.setdefault(job, {})
            of_job.setdefault(process, set()).update(re.findall("`(.+?)`", addresses))
    return found


def role(words: Sequence[str], variables: Mapping[str, str]) -> str:
    """A process's name in the tables, by its command line and environment; empty for sshd."""
    names = {Path(word).name.removesuffix(".py") for word in words}
    if "sshd" in names or any(word.startswith("sshd:") for word in words):
        return ""
    if "DMLC_ROLE" in variables and "parallel.launch.guard" not in words:
        return variables["DMLC_ROLE"]
    if "horovod.runner.task_fn" in words:
        return "horovodrun"
    for name in ("mpirun", "orted", "horovodrun", "parallel.launch"):
        if name in names:
            return name
    return "rank" if "train" in names else " ".join(words)
