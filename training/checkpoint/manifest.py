"""The manifest of a checkpoint: what each rank's file holds, and everything that is no array.

A checkpoint is read years later, on another number of ranks, perhaps after a disk has lost some of
it. So nothing in a manifest is believed: whatever its bytes are, reading it gives a manifest whose
arrays lie inside their files and whose slices cover every class exactly once, or a ``DataError``.
It is JSON and names no path; nothing in it can make a reader run code or open another file.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtime.errors import DataError
from runtime.state import OWN, REPLICATED, SHARDED

FORMAT = 1
FILE_NAME = "manifest.json"
_KINDS = (REPLICATED, OWN, SHARDED)
_DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint8")
# Bytes of an array that are written or read at once.
CHUNK = 16 * 2**20
# The manifest of a network of a thousand layers on a thousand ranks is smaller.
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
    """What one rank has written."""

    size: int
    entries: tuple[Entry, ...]

    def __getitem__(self, name: str) -> Entry:
        return next(entry for entry in self.entries if entry.name == name)


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's table of contents.

    Attributes:
        update: finished updates.
        serial: larger than that of every earlier checkpoint in the same folder, whatever its
            update: a run may start anew beside the checkpoints of another.
        files: of each rank.
        values: small values, by the part of training that they belong to.
        about: configuration, versions, time: what a person or the next run wants to know.
    """

    update: int
    serial: int
    files: tuple[RankFile, ...]
    values: Mapping[str, Any]
    about: Mapping[str, Any]

    @property
    def world_size(self) -> int:
        """How many ranks have written it."""
        return len(self.files)

    def slices(self, name: str) -> Iterator[tuple[int, Entry]]:
        """The parts of a sharded array with their ranks, in the order of rows."""
        for rank, file in enumerate(self.files):
            yield rank, file[name]

    def dump(self) -> str:
        """Write it as JSON, with a checksum over itself."""
        body = {"format": FORMAT, **asdict(self)}
        return json.dumps({**body, "checksum": _checksum(body)}, indent=1) + "\n"


def dump_file(file: RankFile) -> str:
    """Write a rank's part of a manifest as JSON."""
    return json.dumps(asdict(file))


def file_name(rank: int) -> str:
    """The file of a rank's arrays in a checkpoint."""
    return f"rank-{rank:04d}.bin"


def read(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        DataError: it is missing, broken, or of another format.
    """
    path = folder / FILE_NAME
    body = _read_json(path)
    with _blaming(path):
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
    with _blaming(path):
        return _parse_file(body)


class _blaming:
    """Turns a broken rule into a ``DataError`` that names the file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if isinstance(error, _BrokenError):
            raise DataError(
                f"{self._path} {error}: the checkpoint is broken; use another one"
            ) from None


class _BrokenError(Exception):
    """A rule that a manifest breaks."""


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
    # Brackets within brackets end in a RecursionError.
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
    files = body.get("files")
    _require(isinstance(files, list) and bool(files), "has no files")
    assert isinstance(files, list)
    manifest = Manifest(
        body["update"],
        body["serial"],
        tuple(_parse_file(file) for file in files),
        body["values"],
        body["about"],
    )
    check_slices(manifest.files)
    return manifest


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
    """Refuse files that do not fit together.

    Raises:
        _BrokenError: an array is not where it should be; ``read`` makes a ``DataError`` of it.
    """
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
