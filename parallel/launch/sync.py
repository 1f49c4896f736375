"""Copies the project, and files that the user names, to all hosts of a job, under the same paths.

A host that has nothing yet needs ssh, a shell, GNU tar and coreutils for it, and no Python. Each
host says first which checksums its files have, so that only those that differ are sent. What
arrives lies in a folder of its own until all of it has its checksums, and then takes the place of
the former files one by one. No other file is touched, and none is removed.

Not by rsync: where a host shares this folder, or is this host, ``rsync -L`` replaces the user's
links by copies. Nor by tar alone, which cuts a file off there if it is interrupted.
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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
_MOST_NAMED = 5
_SUMS, _FILES = "sums", "files"
# "$1" is a folder, in which the files of the names on standard input are; those that it lacks are
# left out. A checksum, two characters, a name, a zero byte.
_DESCRIBE = """\
mkdir -p "$1" && cd "$1" || exit
xargs -0 -r sha256sum --zero -- 2>/dev/null || true
"""
# Takes an archive, whose files get into the folder "$1" when all of them are whole.
_RECEIVE = """\
set -e
cd "$1"
stage=$(mktemp -d "$1/.sync-XXXXXXXX")
trap 'rm -rf "$stage"' EXIT
tar -C "$stage" --no-same-owner -xf -
cd "$stage/files"
sha256sum --quiet --strict -c ../sums >&2
find . -type d -exec sh -c 'for one; do mkdir -p "$0/$one"; done' "$1" {} +
find . -type f -exec sh -c 'for one; do mv -fT "$one" "$0/$one" || exit; done' "$1" {} +
"""


@dataclass(frozen=True)
class Tree:
    """Files below a folder, which is the same on all hosts."""

    folder: Path
    checksums: Mapping[str, str]
    """SHA-256 of each file, by its path in the folder."""
    left_out: int = 0
    """Number of pipes, sockets and devices, which are not copied."""


def copy_to(hosts: Sequence[str], names: Sequence[str]) -> list[str]:
    """Copy the project, and files or folders of these names in this folder, to hosts.

    Returns:
        A line for each host: what it has got.

    Raises:
        ConfigError: a name does not exist here, or a host does not answer or cannot take the files;
            with the name of that host.
    """
    trees = [_project(), *map(_named, names)]
    # Only the connection has a time limit; reading and sending files may take long.
    ssh.check(hosts)
    with ThreadPoolExecutor(max_workers=len(hosts)) as pool, ssh.Sessions() as sessions:
        futures = [pool.submit(_copy, sessions, host, trees) for host in hosts]
        return [future.result() for future in futures]


def _copy(sessions: ssh.Sessions, host: str, trees: Sequence[Tree]) -> str:
    copied: list[str] = []
    total, size = 0, 0
    for tree in trees:
        there = _ask(sessions, host, tree)
        missing = [name for name, own in tree.checksums.items() if there.get(name) != own]
        if missing:
            _send(sessions, host, tree, missing)
        copied += missing
        total += len(tree.checksums)
        size += sum((tree.folder / name).stat().st_size for name in missing)
    count = sum(tree.left_out for tree in trees)
    left_out = f"; left out, as no files: {count}" if count else ""
    if not copied:
        return f"{host} has all {total} files already{left_out}"
    more = len(copied) - _MOST_NAMED
    named = ", ".join(copied[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{host} got {len(copied)} of {total} files, {size / 1e6:.1f} MB: {named}{left_out}"


def _project() -> Tree:
    return _tree(_PROJECT, [path for name in PROJECT_NAMES for path in _PROJECT.glob(name)])


def _named(name: str) -> Tree:
    path = Path.cwd() / name
    if not os.path.exists(path):
        raise ConfigError(
            f"--sync {name} does not exist here; name a file or folder to copy, as in --sync=NAME, "
            "or put -- before the command"
        )
    if not (path.is_file() or path.is_dir()):
        raise ConfigError(
            f"--sync {name} is neither a file nor a folder; name a file or folder to copy"
        )
    return _tree(path.parent, [path])


def _tree(folder: Path, paths: Iterable[Path]) -> Tree:
    try:
        found = [file for path in paths for file in _files(path)]
        # A link that leads nowhere is among the files, a pipe, which would never end, is not.
        files = [file for file in found if file.is_file() or not file.exists()]
        checksums = {str(file.relative_to(folder)): sha256(file) for file in files}
    except OSError as error:
        raise ConfigError(
            f"--sync: {error.filename} cannot be read here ({error.strerror})"
        ) from None
    for name in checksums:
        if "\n" in name or "\\" in name:
            raise ConfigError(
                f"--sync: the name of {str(folder / name)!r} has a line break or a backslash; "
                "give it another"
            )
    return Tree(folder, checksums, len(found) - len(files))


def _files(path: Path) -> Iterator[Path]:
    """Yield all but folders at and below a path, links followed; compiled Python is left out."""
    if path.is_dir():
        for child in sorted(path.iterdir()):
            if child.name != _COMPILED:
                yield from _files(child)
    else:
        yield path


def _ask(sessions: ssh.Sessions, host: str, tree: Tree) -> dict[str, str]:
    """The checksums of those of a tree's files that a host has."""
    names = os.fsencode("".join(f"{name}\0" for name in tree.checksums))
    answer = sessions.call(_command(host, _DESCRIBE, tree.folder), names)
    _check(host, answer.status, answer.errors)
    lines = os.fsdecode(answer.output).split("\0")
    return {line[66:]: line[:64] for line in lines if line}


def _send(sessions: ssh.Sessions, host: str, tree: Tree, names: Sequence[str]) -> None:
    """Send files of a tree, with their checksums, as an archive."""
    # A file: the other side, which writes into a full pipe, would read no further.
    with tempfile.TemporaryFile() as errors:
        process = sessions.start(
            _command(host, _RECEIVE, tree.folder),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip
        assert process.stdin is not None
        try:
            with process.stdin:
                _write_archive(process.stdin, tree, names)
        except BrokenPipeError:
            # The other side says why it does not read on.
            pass
        except OSError as error:
            raise ConfigError(
                f"--sync: {error.filename or tree.folder} cannot be read here "
                f"({error.strerror or error})"
            ) from None
        finally:
            status = process.wait()
        errors.seek(0)
        _check(host, status, errors.read().decode("utf-8", "replace"))


def _write_archive(stream: IO[bytes], tree: Tree, names: Sequence[str]) -> None:
    with tarfile.open(fileobj=stream, mode="w|", dereference=True) as archive:
        sums = os.fsencode("".join(f"{tree.checksums[name]}  {name}\n" for name in names))
        header = tarfile.TarInfo(_SUMS)
        header.size = len(sums)
        archive.addfile(header, io.BytesIO(sums))
        for name in names:
            archive.add(tree.folder / name, f"{_FILES}/{name}")


def _command(host: str, script: str, folder: Path) -> list[str]:
    return [
        *ssh.CLIENT,
        *ssh.destination(host),
        shlex.join(["sh", "-c", script, "sh", str(folder)]),
    ]


def _check(host: str, status: int, errors: str) -> None:
    if status == 0:
        return
    reason = ssh.last_line(errors)
    if status == ssh.STATUS_OF_SSH:
        raise ssh.unreachable(host, reason)
    raise ConfigError(f"host {host}: --sync has not copied all files there: {reason}")
