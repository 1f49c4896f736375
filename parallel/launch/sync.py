"""Copies the project, and files that the user names, to all hosts of a job, under the same paths.

A host that has nothing yet needs ssh, a shell, GNU tar and coreutils for it, and no Python. Each
host says first which checksums its files have, so that only those that differ are sent. What
arrives lies in a folder of its own until all of it is there, and then takes the place of the
former files one by one. No other file is touched, and none is removed.

Not by rsync: where a host shares this folder, or is this host, ``rsync -L`` replaces the user's
links by copies. Nor by tar alone, which cuts a file off there if it is interrupted.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from parallel.launch import ssh
from runtime.errors import ConfigError
from runtime.files import sha256

_PROJECT = Path(__file__).resolve().parents[2]
PROJECT_NAMES = (
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "Dockerfile", "Makefile", "README.md"),
    *("SECURITY.md", "backbones", "benchmarks", "classify.py", "config.sh", "data", "docs"),
    *("constraints-bench.txt", "evaluation", "examples", "hosts", "mkdocs.yml", "parallel"),
    *("partial_fc", "pyproject.toml", "requirements*.lock", "requirements*.txt", "run.sh"),
    *("runtime", "setup-utils", "tests", "train.py", "training"),
)
"""The parts of the project in its folder, which may also hold data sets and models."""
_COMPILED = "__pycache__"
# "$1" is a folder, in which the files of the names on standard input are; those that it lacks are
# left out. A checksum, two characters, a name, a zero byte.
_DESCRIBE = """\
mkdir -p "$1" && cd "$1" || exit
xargs -0 -r sha256sum --zero -- 2>/dev/null || true
"""
# Sends the files of the folder "$0" whose names are on standard input; "$@" is the client of ssh.
_SEND = """\
set -o pipefail
tar -C "$0" -ch --hard-dereference --null --verbatim-files-from -T - | "$@"
"""
# Takes the "$2" files that _SEND sends; they get into the folder "$1" when all have arrived.
_RECEIVE = """\
set -e
cd "$1"
stage=$(mktemp -d "$1/.sync-XXXXXXXX")
trap 'rm -rf "$stage"' EXIT
tar -C "$stage" --no-same-owner -xf -
cd "$stage"
[ "$(find . -type f -printf x | wc -c)" = "$2" ] || { echo 'not all have arrived' >&2; exit 1; }
find . -type d -exec sh -c 'for one; do mkdir -p "$0/$one"; done' "$1" {} +
find . -type f -exec sh -c 'for one; do mv -fT "$one" "$0/$one" || exit; done' "$1" {} +
"""


def copy_to(hosts: Sequence[str], names: Sequence[str]) -> list[str]:
    """Copy the project, and files or folders of these names in this folder, to hosts.

    Returns:
        A line for each host: what it has got.

    Raises:
        ConfigError: a name does not exist here, or a host does not answer or cannot take the files;
            with the name of that host.
    """
    for name in names:
        if not (os.path.isfile(name) or os.path.isdir(name)):
            raise ConfigError(
                f"--sync {name} is not a file or folder here; name what to copy, as in "
                "--sync=NAME, or put -- before the command"
            )
    trees: dict[Path, dict[str, str]] = {}
    project = [path for name in PROJECT_NAMES for path in _PROJECT.glob(name)]
    try:
        for path in [*project, *(Path(os.path.abspath(name)) for name in names)]:
            found = {str(file.relative_to(path.parent)): sha256(file) for file in _files(path)}
            trees.setdefault(path.parent, {}).update(found)
    except OSError as error:
        raise ConfigError(
            f"--sync: {error.filename} cannot be read here ({error.strerror})"
        ) from None
    # Only the connection has a time limit; reading and sending files may take long.
    ssh.check(hosts)
    copied = dict.fromkeys(hosts, 0)
    for folder, checksums in trees.items():
        for host, number in _copy(hosts, folder, checksums).items():
            copied[host] += number
    total = sum(map(len, trees.values()))
    return [f"{host} got {number} of {total} files" for host, number in copied.items()]


def _files(path: Path) -> Iterator[Path]:
    """Yield the files at and below a path, links followed; compiled Python is left out."""
    if path.is_dir():
        for child in sorted(path.iterdir()):
            if child.name != _COMPILED:
                yield from _files(child)
    # A link that leads nowhere cannot be read; a pipe, which would never end, is left out.
    elif path.is_file() or not path.exists():
        yield path


def _copy(hosts: Sequence[str], folder: Path, checksums: Mapping[str, str]) -> dict[str, int]:
    """Send hosts the files of a folder that they lack; returns how many these are."""
    commands = {host: _client(host, _DESCRIBE, str(folder)) for host in hosts}
    answers = _answers(commands, dict.fromkeys(hosts, _joined(checksums)))
    sending: dict[str, list[str]] = {}
    names: dict[str, list[str]] = {}
    for host, output in answers.items():
        there = {line[66:]: line[:64] for line in os.fsdecode(output).split("\0")}
        missing = (name for name in checksums if there.get(name) != checksums[name])
        names[host] = sorted(missing, key=os.fsencode)
        if names[host]:
            client = _client(host, _RECEIVE, str(folder), str(len(names[host])))
            sending[host] = ["bash", "-c", _SEND, str(folder), *client]
    _answers(sending, {host: _joined(names[host]) for host in sending})
    return {host: len(missing) for host, missing in names.items()}


def _client(host: str, script: str, *arguments: str) -> list[str]:
    """Return the client of ssh that runs a script on a host."""
    return [*ssh.CLIENT, *ssh.destination(host), shlex.join(["sh", "-c", script, "sh", *arguments])]


def _answers(commands: Mapping[str, Sequence[str]], given: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return what clients print; raises an error with the first host whose client fails."""
    answers = ssh.answers(commands, given)
    for host, answer in answers.items():
        if answer.status == ssh.STATUS_OF_SSH:
            raise ssh.unreachable(host, answer.reason)
        if answer.status:
            raise ConfigError(
                f"host {host}: --sync has not copied all files there: {answer.reason}"
            )
    return {host: answer.output for host, answer in answers.items()}


def _joined(lines: Iterable[str]) -> bytes:
    return os.fsencode("".join(f"{line}\0" for line in lines))
