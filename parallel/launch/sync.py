"""Copies the project, and files that the user names, to all hosts of a job, under the same paths.

rsync sends what differs, and puts files into their places when all of them have arrived. To a host
without rsync, or from one, tar sends all of them through ssh. Links are followed. No other file is
touched, and none is removed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from parallel.launch import ssh
from runtime.errors import ConfigError

_PROJECT = Path(__file__).resolve().parents[2]
PROJECT_NAMES = (
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "Dockerfile", "Makefile", "README.md"),
    *("SECURITY.md", "backbones", "benchmarks", "classify.py", "config.sh", "data", "docs"),
    *("constraints-bench.txt", "evaluation", "examples", "hosts", "mkdocs.yml", "parallel"),
    *("partial_fc", "pyproject.toml", "requirements*.lock", "requirements*.txt", "run.sh"),
    *("runtime", "setup-utils", "tests", "train.py", "training"),
)
"""The parts of the project in its folder, which may also hold data sets and models."""
_EXCLUDED = "--exclude=__pycache__"
# -R: each to its own path; -L: what a link leads to; -c: compare checksums.
_RSYNC = ("rsync", "-rLpcR", "--no-implied-dirs", "--delay-updates", "--out-format=+ %n", _EXCLUDED)
_RECEIVE = "tar -C / --no-same-owner --no-overwrite-dir -xvf - | sed 's/^/+ /'"
# The last lines of programs that have said before what is wrong.
_NO_REASON = re.compile(r"rsync error|rsync: connection unexpectedly|tar: (Exiting|Error is)")
_MOST_NAMED = 5


def copy_to(hosts: Sequence[str], names: Sequence[str]) -> list[str]:
    """Copy the project, and files or folders of these names in this folder, to hosts.

    Returns:
        A line for each host: which files it has got.

    Raises:
        ConfigError: a name does not exist here, or a host does not answer or cannot take the files;
            with the name of that host.
    """
    project = [path for name in PROJECT_NAMES for path in sorted(_PROJECT.glob(name))]
    paths = [*map(str, project), *map(_named, names)]
    # Only the connection has a time limit; sending files may take long.
    ssh.check(hosts)
    with ThreadPoolExecutor(len(hosts)) as pool, ssh.Sessions() as sessions:
        return list(pool.map(lambda host: _copy(sessions, host, paths), hosts))


def _named(name: str) -> str:
    path = os.path.abspath(name)
    if not os.path.exists(path):
        raise ConfigError(
            f"--sync {name} does not exist here; name a file or folder to copy, as in --sync=NAME, "
            "or put -- before the command"
        )
    if not (os.path.isfile(path) or os.path.isdir(path)):
        raise ConfigError(
            f"--sync {name} is neither a file nor a folder; name a file or folder to copy"
        )
    return path


def _copy(sessions: ssh.Sessions, login: str, paths: Sequence[str]) -> str:
    *client, host = [*ssh.CLIENT, *ssh.destination(login)]
    if shutil.which("rsync") and not sessions.call([*client, host, "command -v rsync"]).status:
        answer = sessions.call([*_RSYNC, "-e", shlex.join(client), *paths, f"{host}:/"])
    else:
        relative = [path.lstrip("/") for path in paths]
        send = shlex.join(["tar", "-C", "/", _EXCLUDED, "-chf", "-", *relative])
        receive = shlex.join([*client, host, f"bash -o pipefail -c {shlex.quote(_RECEIVE)}"])
        answer = sessions.call(["bash", "-o", "pipefail", "-c", f"{send} | {receive}"])
    if answer.status:
        reasons = [line for line in answer.errors.splitlines() if not _NO_REASON.match(line)]
        raise ConfigError(
            f"host {login}: --sync has not copied all files there: "
            f"{ssh.last_line(chr(10).join(reasons))}"
        )
    lines = answer.output.decode("utf-8", "replace").splitlines()
    found = [line[2:] for line in lines if line.startswith("+ ") and not line.endswith("/")]
    if not found:
        return f"{login} has all files already"
    here = f"{Path.cwd()}/"
    names = [f"/{name.lstrip('/')}".removeprefix(here) for name in found[:_MOST_NAMED]]
    more = len(found) - len(names)
    return f"{login} got {', '.join(names)}" + (f" and {more} more" if more else "")
