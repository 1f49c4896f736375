"""The layout of a checkpoint: its manifest, what each rank's file holds, and reading both.

A checkpoint may be read years later, on another number of ranks, after a disk has lost some of it.
So a manifest is not trusted: whatever its bytes are, reading it gives a manifest whose arrays lie
inside their files and whose slices cover every class exactly once, or a ``DataError``. It is JSON
and contains no path; it cannot make a reader run code or open another file.

Arrays are read as memory maps: a rank that takes over some rows of another rank's file reads those
rows only. Reading a map beyond the end of its file would kill the process, so a file is mapped only
if it is as long as its manifest says. Works without MXNet, for the command.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DataError
from runtime.state import OWN, REPLICATED, SHARDED

FORMAT = 1
FILE_NAME = "manifest.json"
_KINDS = (REPLICATED, OWN, SHARDED)
_DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint8")
# Bytes of an array that are written or read at a time.
CHUNK = 16 * 2**20
# More than the manifest of a network of a thousand layers on a thousand ranks.
_MAX_BYTES = 256 * 2**20
_MAX_DIMENSIONS = 8


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
class Manifest:
    """A checkpoint's table of contents."""

    update: int
    """Finished updates."""
    serial: int
    """Larger than that of every earlier checkpoint in the same folder, whatever its update: a run
    may start anew beside the checkpoints of another."""
    files: tuple[RankFile, ...]
    """By rank."""
    values: Mapping[str, Any]
    """Small values, by the part of training that they belong to."""
    about: Mapping[str, Any]
    """Configuration, versions and time, for people and for the next run."""

    @property
    def world_size(self) -> int:
        """The number of ranks that wrote the checkpoint."""
        return len(self.files)

    def slices(self, name: str) -> Iterator[tuple[int, Entry]]:
        """The slices of a sharded array with their ranks, in the order of rows."""
        for rank, file in enumerate(self.files):
            yield rank, file[name]

    def dump(self) -> str:
        """The manifest as JSON, with a checksum over the rest."""
        body = {"format": FORMAT, **asdict(self)}
        return json.dumps({**body, "checksum": _checksum(body)}, indent=1) + "\n"


def dump_file(file: RankFile) -> str:
    """A rank's part of a manifest as JSON."""
    return json.dumps(asdict(file))


def file_name(rank: int) -> str:
    """The name of a rank's file in a checkpoint."""
    return f"rank-{rank:04d}.bin"


def read(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        DataError: it is missing, broken, or of another format.
    """
    path = folder / FILE_NAME
    body = _read_json(path)
    with _naming(path):
        _require(isinstance(body, dict), "is no object")
        _require(_is_count(body.get("format")), "has no format")
        if body["format"] != FORMAT:
            raise DataError(
                f"{path} has format {body['format']}, this program reads {FORMAT}; "
                "read it with the version of the program that wrote it"
            )
        checksum = body.pop("checksum", None)
        _require(checksum == _checksum(body), "does not match its checksum")
        return _parse(body)


def read_file(path: Path) -> RankFile:
    """Read a rank's part of a manifest.

    Raises:
        DataError: it is missing or broken.
    """
    body = _read_json(path)
    with _naming(path):
        return _parse_file(body)


class _BrokenError(Exception):
    """A manifest breaks a rule; the message goes behind the name of its file."""


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn a broken rule into a ``DataError`` that names the file."""
    try:
        yield
    except _BrokenError as error:
        raise DataError(f"{path} {error}: the checkpoint is broken; use another one") from None


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise _BrokenError(rule)


def _read_json(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError("too long")
        return json.loads(content.decode("utf-8"))
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}): the checkpoint is not complete; "
            "use another one"
        ) from None
    # Nested brackets end in a RecursionError.
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is no JSON ({error}): the checkpoint is broken; use another one"
        ) from None


def _checksum(body: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _parse(body: dict[str, Any]) -> Manifest:
    for name in ("update", "serial"):
        _require(_is_count(body.get(name)), f"has no {name}")
    for name in ("values", "about"):
        _require(isinstance(body.get(name), dict), f"has no {name}")
    _require(isinstance(body.get("files"), list) and bool(body["files"]), "has no files")
    files = tuple(map(_parse_file, body["files"]))
    check_slices(files)
    return Manifest(body["update"], body["serial"], files, body["values"], body["about"])


def _parse_file(body: Any) -> RankFile:
    _require(isinstance(body, dict) and _is_count(body.get("size")), "has a file without a size")
    entries = body.get("entries")
    _require(isinstance(entries, list), "has a file without arrays")
    parsed = tuple(_parse_entry(entry, body["size"]) for entry in entries)
    names = [entry.name for entry in parsed]
    _require(len(names) == len(set(names)), "names an array twice")
    return RankFile(body["size"], parsed)


def _parse_entry(body: Any, size: int) -> Entry:
    fields = {"name", "kind", "dtype", "shape", "start", "total", "offset", "checksum"}
    _require(isinstance(body, dict) and set(body) == fields, "describes an array badly")
    _require(isinstance(body["name"], str), "has an array without a name")
    name = body["name"]
    _require(body["kind"] in _KINDS, f"has a wrong kind of {name!r}")
    _require(body["dtype"] in _DTYPES, f"has a wrong type of {name!r}")
    shape = body["shape"]
    _require(
        isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS and all(map(_is_count, shape)),
        f"has a wrong shape of {name!r}",
    )
    counts = [body[field] for field in ("start", "total", "offset", "checksum")]
    _require(all(map(_is_count, counts)), f"has a wrong number of {name!r}")
    entry = Entry(**{**body, "shape": tuple(shape)})
    _require(entry.offset + entry.num_bytes <= size, f"puts {name!r} outside its file")
    return entry


def check_slices(files: Sequence[RankFile]) -> None:
    """Raise a ``_BrokenError``, of which ``read`` makes a ``DataError``, if files do not match."""
    first = {entry.name: entry for entry in files[0].entries}
    stops = dict.fromkeys(first, 0)
    for rank, file in enumerate(files):
        entries = {entry.name: entry for entry in file.entries}
        expected = {name for name, entry in first.items() if rank == 0 or entry.kind != REPLICATED}
        _require(set(entries) == expected, f"has other arrays on rank {rank} than on rank 0")
        for name, entry in entries.items():
            like = first[name]
            same = (entry.kind, entry.dtype, entry.total) == (like.kind, like.dtype, like.total)
            _require(same, f"has another {name!r} on rank {rank} than on rank 0")
            if entry.kind == SHARDED:
                row = bool(entry.shape) and entry.shape[1:] == like.shape[1:]
                _require(row and entry.start == stops[name], f"has a gap in {name!r}")
                stops[name] = entry.stop
            else:
                _require(entry.shape == like.shape, f"has different shapes of {name!r}")
    for name, entry in first.items():
        whole = entry.kind != SHARDED or stops[name] == entry.total
        _require(whole, f"lacks rows of {name!r}")


class Checkpoint:
    """A checkpoint for reading; its arrays are memory maps.

    Every method raises a ``DataError`` if a file or an array that it needs is missing or cut off.
    """

    def __init__(self, path: Path) -> None:
        """Read the manifest."""
        if not path.is_dir():
            raise DataError(f"{path} does not exist; name the folder of a checkpoint")
        self.path = path
        self.manifest = read(path)

    def verify(self, rank: int) -> None:
        """Compare the file of a rank with its checksums; ``DataError`` if it has changed."""
        try:
            with self._open(rank) as file:
                for entry in self.manifest.files[rank].entries:
                    file.seek(entry.offset)
                    if _file_checksum(file, entry.num_bytes) != entry.checksum:
                        raise DataError(
                            f"{file.name}: {entry.name!r} does not match its checksum: "
                            "the checkpoint is broken; use another one"
                        )
        except OSError as error:
            raise self._unreadable(rank, error) from None

    def names(self, prefix: str) -> list[str]:
        """The names of the arrays that begin with ``prefix``."""
        entries = self.manifest.files[0].entries
        return [entry.name for entry in entries if entry.name.startswith(prefix)]

    def entry(self, name: str) -> Entry:
        """What the manifest says of an array, on rank 0."""
        for entry in self.manifest.files[0].entries:
            if entry.name == name:
                return entry
        raise DataError(
            f"{self.path} lacks {name!r}; it was written by another kind of run or version"
        )

    def replicated(self, name: str) -> NDArray[Any]:
        """An array that is the same on all ranks."""
        return self._map(0, self.entry(name))

    def own(self, name: str, rank: int, world_size: int) -> NDArray[Any]:
        """The rank's own array; if another number of ranks has written them, the mean of all."""
        self.entry(name)
        if world_size == self.manifest.world_size:
            return self._map(rank, self.manifest.files[rank][name])
        every = [self._map(other, file[name]) for other, file in enumerate(self.manifest.files)]
        mean: NDArray[Any] = np.mean(every, axis=0, dtype=np.float64).astype(every[0].dtype)
        return mean

    def pieces(self, name: str, start: int, stop: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """The rows ``[start, stop)`` of a sharded array, from the files that hold some of them.

        Yields:
            A piece's first row, counted from ``start``, and its rows, which are read when used.
        """
        self.entry(name)
        for rank, entry in self.manifest.slices(name):
            first, last = max(start, entry.start), min(stop, entry.stop)
            if first < last:
                rows = self._map(rank, entry)
                yield first - start, rows[first - entry.start : last - entry.start]

    def _map(self, rank: int, entry: Entry) -> NDArray[Any]:
        if not entry.num_bytes:
            return np.empty(entry.shape, entry.dtype)
        try:
            with self._open(rank) as file:
                return np.memmap(file, entry.dtype, "r", entry.offset, entry.shape)
        except OSError as error:
            raise self._unreadable(rank, error) from None

    def _open(self, rank: int) -> Any:
        """Open a rank's file if it has the size that the manifest says."""
        path = self.path / file_name(rank)
        file = path.open("rb")
        size, right = os.fstat(file.fileno()).st_size, self.manifest.files[rank].size
        if size != right:
            file.close()
            raise DataError(
                f"{path} has {size} bytes, its manifest says {right}: "
                "the checkpoint is broken; use another one"
            )
        return file

    def _unreadable(self, rank: int, error: OSError) -> DataError:
        path = self.path / file_name(rank)
        return DataError(
            f"{path} cannot be read ({error.strerror}): the checkpoint is broken; use another one"
        )


def _file_checksum(file: Any, size: int) -> int:
    checksum = 0
    while size > 0:
        chunk = file.read(min(size, CHUNK))
        if not chunk:
            break
        checksum = zlib.crc32(chunk, checksum)
        size -= len(chunk)
    return checksum
