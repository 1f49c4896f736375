"""The layout of a checkpoint: its manifests, and what each rank's file holds.

A checkpoint may be read years later, on another number of ranks, after a disk has lost some of it.
So a manifest is not trusted: whatever its bytes are, reading it gives a manifest whose arrays lie
inside their files and are of one kind and type on all ranks, or a ``DataError``. It is JSON and
contains no path; it cannot make a reader run code or open another file.

A manifest describes the files that were written together into one folder. Where hosts share no file
system, each has a folder with the files of its own ranks, and its manifest says which host wrote
each of the others. Manifests of different hosts have different names, so that a copy of one folder
into another (``rsync``) adds files and replaces none: ``read_part`` joins what it finds.

``reader`` reads the arrays. Both work without MXNet, for the command.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Union

import numpy as np

from runtime import files
from runtime.errors import DataError
from runtime.state import OWN, REPLICATED, SHARDED

FORMAT = 3
FILE_NAME = "manifest.json"
_KINDS = (REPLICATED, OWN, SHARDED)
_DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint8")
# Bytes of an array that are written or read at a time.
CHUNK = 16 * 2**20
# More than the manifest of a network of a thousand layers on a thousand ranks.
MAX_BYTES = 256 * 2**20
_MAX_DIMENSIONS = 8
_MAX_RANKS = 100_000


@dataclass(frozen=True)
class Entry:
    """An array in a rank's file; see ``runtime.state.Stored``."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    total: int
    offset: int
    checksum: int
    """CRC-32 of its bytes."""

    @property
    def num_bytes(self) -> int:
        """The bytes of the array in the file."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def inner(self) -> tuple[int, ...]:
        """The shape of a row of a sharded array, and of the whole of another."""
        return self.shape[1:] if self.kind == SHARDED else self.shape

    @property
    def stop(self) -> int:
        """One past the last row of a sharded array that this rank holds."""
        return self.start + self.shape[0]


@dataclass(frozen=True)
class RankFile:
    """The table of contents of one rank's file."""

    size: int
    entries: tuple[Entry, ...]

    def __getitem__(self, name: str) -> Entry:
        return next(entry for entry in self.entries if entry.name == name)


@dataclass(frozen=True)
class Part:
    """The table of contents of a checkpoint, or of what one folder holds of it."""

    update: int
    """Finished updates."""
    serial: int
    """Larger than that of every earlier checkpoint in the same folder, whatever its update: a run
    may start anew next to the checkpoints of another."""
    save: str
    """A random word of the save, the same in all folders."""
    hosts: tuple[str, ...]
    """The host that wrote the file of each rank; empty if all were written into one folder."""
    files: Mapping[int, RankFile]
    """By rank."""
    values: Mapping[str, Mapping[str, Any]]
    """Small values, by the part of training that they belong to."""
    about: Mapping[str, Any]
    """Configuration, images and time, for people and for the next run."""

    @property
    def world_size(self) -> int:
        """The number of ranks that wrote the checkpoint."""
        return len(self.hosts) or len(self.files)

    @property
    def age(self) -> tuple[bool, int, int]:
        """Key that is largest for what cannot be read, and then for the newest."""
        return not self.world_size, self.serial, self.update

    @property
    def missing(self) -> list[int]:
        """The ranks whose files are on other hosts."""
        return [rank for rank in range(self.world_size) if rank not in self.files]

    def dump(self) -> str:
        """Return the manifest as JSON, with a checksum over the rest."""
        body = {"format": FORMAT, **vars(self), "hosts": list(self.hosts)}
        # JSON's keys are strings.
        body["files"] = {str(rank): asdict(file) for rank, file in body.pop("files").items()}
        return json.dumps({**body, "checksum": _checksum(body)}, indent=1) + "\n"


UNREADABLE = Part(0, 0, "", (), {}, {}, {})
"""In place of what a folder has if its manifest cannot be read: files of no ranks."""


def broken(what: str) -> DataError:
    """Return the error of a checkpoint of which something is wrong."""
    return DataError(f"{what}: the checkpoint is broken; use another one")


def lacking(ranks: Sequence[int], hosts: Union[Sequence[str], Mapping[int, str]]) -> str:
    """Name missing files and the hosts that wrote them."""
    shown = ", ".join(f"{file_name(rank)} of {hosts[rank]}" for rank in ranks[:3])
    return shown + (f" and {len(ranks) - 3} others" if len(ranks) > 3 else "")


def rsync(hosts: Sequence[str], folder: Union[str, Path]) -> str:
    """Return the command that adds what hosts have of a checkpoint to the folder here."""
    target = shlex.quote(f"{Path(folder).parent}/")
    return " && ".join(
        f"rsync -as {shlex.quote(f'{host}:{folder}')} {target}" for host in dict.fromkeys(hosts)
    )


def file_name(rank: int) -> str:
    """Return the name of a rank's file in a checkpoint."""
    return f"rank-{rank:04d}.bin"


def manifest_name(first: int) -> str:
    """Return the name of the manifest of files whose first is that of the rank ``first``."""
    return f"manifest-{first:04d}.json" if first else FILE_NAME


def read_part(folder: Path) -> Part:
    """Read what a folder holds of a checkpoint, from all manifests there.

    A file that is missing is left out if another host wrote some files: it may be copied from
    there. If all were written into one folder, its loss is for ``reader`` to report.

    Raises:
        DataError: there is no folder; a manifest is missing, broken, or of another format, or they
            do not match.
    """
    if not os.path.isdir(folder):
        raise DataError(f"{folder} does not exist; name the folder of a checkpoint")
    parts: list[Part] = []
    for path in [*folder.glob("manifest*.json")] or [folder / FILE_NAME]:
        with _naming(path):
            parts.append(_parse(files.read_file(path, MAX_BYTES)))
    parts.sort(key=lambda part: min(part.files))
    joined = {rank: file for part in parts for rank, file in part.files.items()}
    with _naming(folder):
        if parts[0].hosts:
            here = [path for path in folder.glob("rank-*.bin") if path.is_file()]
            sizes = {path.name: path.stat().st_size for path in here}
            joined = {rank: f for rank, f in joined.items() if sizes.get(file_name(rank)) == f.size}
        part = replace(parts[0], files=dict(sorted(joined.items())))
        same = {(other.save, other.hosts, other.update, other.serial) for other in parts}
        _require(len(same) == 1, "has manifests of different checkpoints")
        _check_files(part)
    return part


def parse(content: bytes, source: object) -> Part:
    """Read the bytes of a manifest; ``DataError`` with ``source`` if they break a rule."""
    with _naming(source):
        return _parse(content)


def read_file(path: Path) -> RankFile:
    """Read a rank's part of a manifest; ``DataError`` if it is missing or broken."""
    with _naming(path):
        return _parse_file(json.loads(files.read_file(path, MAX_BYTES)))


@contextmanager
def _naming(source: object) -> Iterator[None]:
    """Turn what is wrong with a file into a ``DataError`` that names it."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{source} cannot be read ({error.strerror}): the checkpoint is not complete; "
            "use another one"
        ) from None
    # Content that is no JSON; nested brackets end in a RecursionError.
    except (ValueError, RecursionError) as error:
        raise broken(f"{source} is no manifest ({error})") from None


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise ValueError(rule)


def _checksum(body: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _MAX_DIMENSIONS and all(map(_is_count, value))


def _are_tables(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, dict) for one in value.values())


def _are_hosts(value: Any) -> bool:
    names = isinstance(value, list) and all(isinstance(one, str) for one in value)
    return names and len(value) <= _MAX_RANKS and all(map(str.isprintable, value))


# Checks of the fields of manifests, files and arrays; a field that is not listed is a count.
_RULES: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("save", "name"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("values", "files"), _are_tables),
    **{"about": lambda value: isinstance(value, dict), "hosts": _are_hosts},
    **{"entries": lambda value: isinstance(value, list), "shape": _is_shape},
    **{"kind": _KINDS.__contains__, "dtype": _DTYPES.__contains__},
}


def _check_fields(body: Any, kind: type, what: str) -> None:
    names = [field.name for field in fields(kind)]
    _require(isinstance(body, dict) and body.keys() == {*names}, f"has {what} of other fields")
    for name in names:
        is_right = _RULES.get(name, _is_count)
        _require(is_right(body[name]), f"has {what} of a wrong {name}")


def _parse(content: bytes) -> Part:
    body = json.loads(content)
    _require(isinstance(body, dict), "has no table")
    checksum = body.pop("checksum", None)
    _require(checksum == _checksum(body), "does not match its checksum")
    _require(body.pop("format", None) == FORMAT, f"is not of format {FORMAT}, which is read here")
    _check_fields(body, Part, "a table")
    files, hosts = body["files"], tuple(body["hosts"])
    ranks = range(len(hosts or files))
    _require(bool(files) and set(files) <= set(map(str, ranks)), "has a file of no rank, or none")
    parsed = {rank: _parse_file(files[str(rank)]) for rank in ranks if str(rank) in files}
    part = Part(**{**body, "hosts": hosts, "files": parsed})
    _check_files(part)
    return part


def _parse_file(body: Any) -> RankFile:
    _check_fields(body, RankFile, "a file")
    entries = []
    for each in body["entries"]:
        _check_fields(each, Entry, "an array")
        entry = Entry(**{**each, "shape": tuple(each["shape"])})
        _require(bool(entry.shape) or entry.kind != SHARDED, "has an array of a wrong shape")
        end = entry.offset + entry.num_bytes
        _require(end <= body["size"], f"puts {entry.name!r} outside its file")
        entries.append(entry)
    _require(len({entry.name for entry in entries}) == len(entries), "names an array twice")
    return RankFile(body["size"], tuple(entries))


def _check_files(part: Part) -> None:
    """Raise a ``ValueError`` if ranks have arrays of other kinds or types than others.

    The arrays that are the same on all ranks are in the files of some ranks.
    """

    def likes(file: RankFile) -> set[Any]:
        return {(one.name, one.kind, one.dtype, one.inner, one.total) for one in file.entries}

    every = set[Any]().union(*map(likes, part.files.values()))
    divided = {one for one in every if one[1] != REPLICATED}
    for rank, file in part.files.items():
        _require(likes(file) in (every, divided), f"has other arrays on rank {rank} than on others")
