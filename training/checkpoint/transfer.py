"""Checkpoints between hosts that share no file system: ``gather`` and ``scatter``, over ssh.

A run on the same hosts needs neither. To continue on others, ``gather`` brings the files of all
hosts into this host's folder, and ``scatter`` lays those of this host out on others. Every file is
compared with its checksums where it arrives, and a checkpoint appears under its name when all of it
is there. An interrupted command that is typed again keeps the files that have arrived whole.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Optional

from parallel.launch import ssh
from runtime.errors import ConfigError, DataError
from runtime.files import create
from training import run_folder
from training.checkpoint import files, layout, reader
from training.checkpoint.layout import CHUNK, Manifest, Part

_PROJECT = Path(__file__).resolve().parents[2]
_HOST = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::([1-9][0-9]{0,3}))?")
_MANIFEST = re.compile(rf"(update-\d{{8,}})/{re.escape(layout.FILE_NAME)}")
# Its name, and the manifests of its checkpoints as an archive.
_LIST = (
    'uname -n; cd "$1" 2>/dev/null || exit 0; '
    'set -- update-*/manifest.json; test -f "$1" || exit 0; exec tar -cf - "$@"'
)


@dataclass(frozen=True, eq=False)
class _Host:
    """A host, and the checkpoints in its folder."""

    address: str
    """For ssh; empty for this host."""
    name: str
    parts: Mapping[str, Part]
    """By the name of each checkpoint's folder."""
    slots: int = 1


def gather(root: Path, hosts: str) -> str:
    """Bring the newest checkpoint that several hosts have together into this host's folder.

    Args:
        root: the ``--models-root`` of the run, the same path on all hosts.
        hosts: as in ip1,ip2; this host counts, whether it is named or not.

    Returns:
        What was done, in a line.

    Raises:
        ConfigError: a host is misspelled, or a run writes into the folder.
        DataError: a host cannot be reached, has a broken file, or one is missing.
    """
    with ssh.exits_on_signals(), ssh.Sessions() as sessions:
        return _gather(Path(os.path.realpath(root)), hosts, sessions)


def _gather(root: Path, hosts: str, sessions: ssh.Sessions) -> str:
    everyone = [_here(root), *_others(root, hosts, sessions)]
    name, part, missing = _newest(everyone, root)
    sources = _holders(everyone, name, part.key)
    manifest = layout.join([host.parts[name] for host in dict.fromkeys(sources.values())])
    final = root / files.FOLDER / name
    with _writing(root):
        files.make_folder(final.parent)
        stage = files.hidden_folder(final, f"{part.key}.gathered")
        if stage.is_symlink():
            stage.unlink()
        stage.mkdir(exist_ok=True)
        for rank, host in sources.items():
            _bring(stage, final, rank, manifest, host, sessions)
        files.write_text(stage / layout.FILE_NAME, manifest.dump())
        files.reveal(stage, final)
        files.settle(final.parent, keep=sys.maxsize)
        for incomplete in missing:
            if (final.parent / incomplete).exists():
                files.set_aside(final.parent / incomplete)
    left = "".join(f"; {other} is not complete and left out" for other in missing)
    return f"{final} has the files of all {len(sources)} ranks{left}"


def scatter(root: Path, hosts: str) -> str:
    """Lay the newest checkpoint of this host's folder out on hosts, as their ranks would write it.

    Args:
        root: the ``--models-root`` of the run, the same path on all hosts.
        hosts: with their numbers of ranks, as in ip1:8,ip2:8.

    Returns:
        What was done, in a line.

    Raises:
        ConfigError: a host is misspelled.
        DataError: a host cannot be reached or written, or this folder has no whole checkpoint.
    """
    with ssh.exits_on_signals(), ssh.Sessions() as sessions:
        return _scatter(Path(os.path.realpath(root)), hosts, sessions)


def _scatter(root: Path, hosts: str, sessions: ssh.Sessions) -> str:
    here = _here(root)
    name, part, _ = _newest([here], root)
    source = root / files.FOLDER / name
    for rank, file in part.files.items():
        reader.verify_file(source, rank, file)
    targets = _others(root, hosts, sessions)
    slots = [host for host in targets for _ in range(host.slots)]
    owners = [slots[rank * len(slots) // part.world_size] for rank in range(part.world_size)]
    names = tuple(host.name for host in owners)
    save = f"scattered-{zlib.crc32(repr((layout.join([part]).dump(), names)).encode())}"
    whole = replace(part, save=save, hosts=names)
    for host in targets:
        if host.name == here.name:
            with _writing(root):
                files.write_text(source / layout.FILE_NAME, whole.dump())
            continue
        own = {rank: part.files[rank] for rank, owner in enumerate(owners) if owner is host}
        there = host.parts.get(name)
        if own and not (there and there.save == save):
            _send(root, source, replace(whole, files=own), host, sessions)
    laid = ", ".join(f"{host.name} {sum(owner is host for owner in owners)}" for host in targets)
    return f"{source} is on its hosts: files on {laid}"


def receive(root: Path, stream: IO[bytes]) -> str:
    """Take the part of a checkpoint that ``scatter`` sends to this host as an archive.

    Raises:
        ConfigError: a run writes into the folder.
        DataError: what has arrived is not whole, or there is no room for it.
    """
    folder = root / files.FOLDER
    stage = folder / ".update-received"
    with _writing(root):
        files.make_folder(folder)
        files.discard(stage)
        stage.mkdir()
        try:
            part = _unpack(stream, stage)
        except tarfile.TarError as error:
            raise DataError(f"the files did not arrive whole ({error}); send them again") from None
        final = files.reveal(stage, folder / files.name_of(part.update))
        files.settle(folder, keep=sys.maxsize)
    return f"{final} has {len(part.files)} files"


def _unpack(stream: IO[bytes], stage: Path) -> Part:
    """Write the files of an archive, those that its manifest describes, and verify them."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        members = iter(archive)
        text = _member(archive, next(members, None), layout.FILE_NAME)
        part = layout.parse(text.read(layout.MAX_BYTES), "what has arrived")
        for rank, file in part.files.items():
            content = _member(archive, next(members, None), layout.file_name(rank))
            with create(stage / layout.file_name(rank)) as output:
                shutil.copyfileobj(content, output, CHUNK)
                files.flush(output)
            reader.verify_file(stage, rank, file)
    files.write_text(stage / layout.FILE_NAME, part.dump())
    return part


def _member(archive: tarfile.TarFile, member: Optional[tarfile.TarInfo], name: str) -> IO[bytes]:
    """The content of the next file in an archive, which has to have this name."""
    content = archive.extractfile(member) if member is not None and member.isreg() else None
    if content is None or member is None or member.name != name:
        raise DataError(f"{name} did not arrive; send the checkpoint again")
    return content


@contextmanager
def _writing(root: Path) -> Iterator[None]:
    """Keep runs out of the folder; a full disk is a ``DataError``."""
    try:
        with run_folder.locked(root):
            yield
    except OSError as error:
        where = error.filename or root
        raise DataError(
            f"{where} on {os.uname().nodename} cannot be written ({error.strerror or error}); "
            "make room and type the same command again"
        ) from None


def _here(root: Path) -> _Host:
    found = files.candidates(root / files.FOLDER)
    return _Host("", os.uname().nodename, {path.name: part for path, part in found if part})


def _others(root: Path, hosts: str, sessions: ssh.Sessions) -> list[_Host]:
    """The hosts of a list, asked over ssh for their names and manifests."""
    found = []
    for word in hosts.split(","):
        match = _HOST.fullmatch(word)
        if match is None:
            raise ConfigError(f"-H {hosts[:80]!r} is no list of hosts; write it as ip1:8,ip2:8")
        address = match[1].strip("[]")
        command = shlex.join(["sh", "-c", _LIST, "sh", str(root / files.FOLDER)])
        try:
            answer = sessions.call([*ssh.CLIENT, address, command], seconds=ssh.ANSWER_SECONDS)
        except TimeoutError as error:
            raise _failed(address, ssh.STATUS_OF_SSH, str(error)) from None
        if answer.status:
            raise _failed(address, answer.status, answer.errors)
        name, _, archive = answer.output.partition(b"\n")
        host = name.decode("utf-8", "replace")
        found.append(_Host(address, host, _manifests(archive, host), int(match[2] or 1)))
    return found


def _manifests(archive: bytes, host: str) -> dict[str, Part]:
    """The readable manifests in the archive of a host."""
    parts: dict[str, Part] = {}
    if not archive:
        return parts
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as members:
            for member in members:
                match = _MANIFEST.fullmatch(member.name)
                content = members.extractfile(member) if match and member.isreg() else None
                if match and content:
                    source = f"{member.name} on {host}"
                    parts[match[1]] = layout.parse(content.read(), source)
    except tarfile.TarError as error:
        raise DataError(f"{host} sent no archive ({error}); type the command again") from None
    return parts


def _holders(hosts: Sequence[_Host], name: str, key: str) -> dict[int, _Host]:
    """A host that has the file of each rank, this one if it does."""
    return {
        rank: host
        for host in reversed(hosts)
        if name in host.parts and host.parts[name].key == key
        for rank in host.parts[name].files
    }


def _newest(hosts: Sequence[_Host], root: Path) -> tuple[str, Part, list[str]]:
    """The newest checkpoint of which all files are on the hosts; and newer ones that are not whole.

    Raises:
        DataError: there is none, or a newer one has files on a host that was not asked.
    """
    missing: list[str] = []
    parts = {(name, part.key): part for host in hosts for name, part in host.parts.items()}
    absent = {
        name_and_key: [
            rank for rank in range(part.world_size) if rank not in _holders(hosts, *name_and_key)
        ]
        for name_and_key, part in parts.items()
    }
    # gather and scatter leave parts of the same age beside what they have made whole.
    for name_and_key, part in sorted(
        parts.items(),
        key=lambda item: (item[1].serial, item[1].update, not absent[item[0]]),
        reverse=True,
    ):
        name = name_and_key[0]
        if not absent[name_and_key]:
            return name, part, missing
        asked_names = {one.name for one in hosts}
        elsewhere = [rank for rank in absent[name_and_key] if part.hosts[rank] not in asked_names]
        if elsewhere:
            raise DataError(
                f"{name} lacks {layout.lacking(elsewhere, part.hosts)}; add that host to -H"
            )
        missing.append(name)
    asked = ", ".join(dict.fromkeys(host.name for host in hosts))
    raise DataError(
        f"there is no whole checkpoint in {root} on {asked}; give the --models-root of a run, and "
        "with -H all of its hosts"
    )


def _bring(
    stage: Path, final: Path, rank: int, manifest: Manifest, host: _Host, sessions: ssh.Sessions
) -> None:
    """Put the file of a rank into the stage, unless it is there and whole."""
    target, file = stage / layout.file_name(rank), manifest.files[rank]
    try:
        reader.verify_file(stage, rank, file)
        return
    except DataError:
        target.unlink(missing_ok=True)
    if host.address:
        _fetch(final / target.name, target, host, sessions)
    else:
        os.link(final / target.name, target)
    try:
        reader.verify_file(stage, rank, file)
    except DataError:
        target.unlink(missing_ok=True)
        raise DataError(
            f"{final / target.name} on {host.name} does not match its checksums, or has changed on "
            "its way; look at it there with python -m training.checkpoint verify"
        ) from None


def _fetch(source: Path, target: Path, host: _Host, sessions: ssh.Sessions) -> None:
    # The errors in a file: what ssh has left running in the background would keep a pipe open.
    with create(target) as output, tempfile.TemporaryFile() as errors:
        process = sessions.start(
            [*ssh.CLIENT, host.address, f"exec cat {shlex.quote(str(source))}"],
            stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
        )  # fmt: skip
        if process.wait():
            errors.seek(0)
            raise _failed(host.name, process.returncode, errors.read().decode("utf-8", "replace"))
        files.flush(output)


def _send(root: Path, source: Path, part: Part, host: _Host, sessions: ssh.Sessions) -> None:
    """Send some files of a checkpoint to a host, where this module receives them."""
    command = shlex.join([sys.executable, "-m", "training.checkpoint", "receive", str(root)])
    with tempfile.TemporaryFile() as errors:
        remote = sessions.start(
            [*ssh.CLIENT, host.address, f"cd {shlex.quote(str(_PROJECT))} && exec {command}"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip
        assert remote.stdin is not None
        # The other side says why.
        with suppress(BrokenPipeError), remote.stdin:
            _write_archive(remote.stdin, source, part)
        if remote.wait():
            errors.seek(0)
            raise _failed(host.name, remote.returncode, errors.read().decode("utf-8", "replace"))


def _write_archive(stream: IO[bytes], source: Path, part: Part) -> None:
    with tarfile.open(fileobj=stream, mode="w|") as archive:
        text = part.dump().encode()
        header = tarfile.TarInfo(layout.FILE_NAME)
        header.size = len(text)
        archive.addfile(header, io.BytesIO(text))
        for rank in part.files:
            archive.add(source / layout.file_name(rank), layout.file_name(rank))


def _failed(host: str, status: int, reason: str) -> DataError:
    """What ssh, or the command on the other host, has said in its last line."""
    lines = reason.strip().splitlines() or [f"status {status}"]
    is_unreachable = status == ssh.STATUS_OF_SSH
    what = "cannot be reached by ssh without a password" if is_unreachable else "failed"
    return DataError(f"{host} {what}: {lines[-1].removeprefix('error: ')}")
