"""The layout of a checkpoint: its manifest, and what each rank's file holds.

A checkpoint may be read years later, on another number of ranks, after a disk has lost some of it.
So a manifest is not trusted: whatever its bytes are, reading it gives a manifest whose arrays lie
inside their files and whose slices cover every class exactly once, or a ``DataError``. It is JSON
and contains no path; it cannot make a reader run code or open another file.

``reader`` reads the arrays. Both work without MXNet, for the command.

Where hosts share no file system, each has a folder with the files of its own ranks. The manifest in
it is of format 2: it describes these files, and says which host wrote each of the others. All
manifests of one save join into that of a whole checkpoint, which is format 1.
"""

from __future__ import annotations

import json
import math
import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runtime import files
from runtime.errors import DataError
from runtime.state import OWN, REPLICATED, SHARDED

FORMAT = 1
PART_FORMAT = 2
FILE_NAME = "manifest.json"
_KINDS = (REPLICATED, OWN, SHARDED)
_DTYPES = ("float16", "float32", "float64", "int32", "int64", "uint8", "uint16")
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


@dataclass(frozen=True)
class Part:
    """What one folder holds of a checkpoint: the files of some ranks, or of all."""

    update: int
    serial: int
    save: str
    """A random word of the save, the same in all folders; empty if one folder holds everything."""
    hosts: tuple[str, ...]
    """The host that wrote the file of each rank; empty if one folder holds everything."""
    files: Mapping[int, RankFile]
    """Those in this folder, by rank."""
    values: Mapping[str, Any]
    about: Mapping[str, Any]

    @property
    def world_size(self) -> int:
        """The number of ranks that wrote the checkpoint."""
        return len(self.hosts) or len(self.files)

    @property
    def key(self) -> str:
        """The same for what was saved together, in whatever folders it is."""
        return self.save or str(zlib.crc32(self.dump().encode()))

    def dump(self) -> str:
        """The manifest of this folder as JSON, with a checksum over the rest."""
        if not self.hosts:
            return join([self]).dump()
        # JSON's keys are strings.
        files = {str(rank): asdict(file) for rank, file in self.files.items()}
        fields = {name: value for name, value in vars(self).items() if name != "files"}
        body = {"format": PART_FORMAT, **fields, "hosts": list(self.hosts), "files": files}
        return json.dumps({**body, "checksum": _checksum(body)}, indent=1) + "\n"


def join(parts: Sequence[Part]) -> Manifest:
    """The manifest of a whole checkpoint, from the parts of one save.

    Raises:
        DataError: a rank's file is in none of them, or they do not match.
    """
    one = min(parts, key=lambda part: min(part.files, default=part.world_size))
    files = {rank: file for part in parts for rank, file in part.files.items()}
    missing = [rank for rank in range(one.world_size) if rank not in files]
    what = f"the checkpoint of update {one.update}"
    if missing:
        raise DataError(f"{what} lacks {lacking(missing, one.hosts)}")
    ordered = tuple(files[rank] for rank in range(one.world_size))
    with _naming(what):
        check_slices(ordered)
    return Manifest(one.update, one.serial, ordered, one.values, one.about)


def lacking(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Which files are missing, and who wrote them."""
    shown = ", ".join(f"{file_name(rank)} of {hosts[rank]}" for rank in ranks[:3])
    return shown + (f" and {len(ranks) - 3} others" if len(ranks) > 3 else "")


def dump_file(file: RankFile) -> str:
    """A rank's part of a manifest as JSON."""
    return json.dumps(asdict(file))


def file_name(rank: int) -> str:
    """The name of a rank's file in a checkpoint."""
    return f"rank-{rank:04d}.bin"


def read(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint that is whole in one folder.

    Raises:
        DataError: it is missing, broken, of another format, or other hosts have some of the files.
    """
    part = read_part(folder)
    missing = [rank for rank in range(part.world_size) if rank not in part.files]
    if missing:
        hosts = ",".join(dict.fromkeys(part.hosts))
        raise DataError(
            f"{folder} lacks {lacking(missing, part.hosts)}; bring them here with python -m "
            f"training.checkpoint gather -H {hosts} {shlex.quote(str(folder.parent.parent))}"
        )
    return join([part])


def read_part(folder: Path) -> Part:
    """Read what a folder holds of a checkpoint.

    Raises:
        DataError: the manifest is missing, broken, or of another format.
    """
    path = folder / FILE_NAME
    return parse(_read(path), path)


def parse(content: bytes, source: object) -> Part:
    """Read and check the bytes of a manifest; ``source`` is named in errors.

    Raises:
        DataError: it is broken, or of another format.
    """
    body = _parse_json(content, source)
    with _naming(source):
        _require(isinstance(body, dict), "is no object")
        _require(_is_count(body.get("format")), "has no format")
        if body["format"] not in (FORMAT, PART_FORMAT):
            raise DataError(
                f"{source} has format {body['format']}, this program reads {FORMAT} and "
                f"{PART_FORMAT}; read it with the version of the program that wrote it"
            )
        checksum = body.pop("checksum", None)
        _require(checksum == _checksum(body), "does not match its checksum")
        return _parse(body)


def read_file(path: Path) -> RankFile:
    """Read a rank's part of a manifest.

    Raises:
        DataError: it is missing or broken.
    """
    body = _parse_json(_read(path), path)
    with _naming(path):
        return _parse_file(body)


class _BrokenError(Exception):
    """A manifest breaks a rule; the message goes behind the name of its file."""


@contextmanager
def _naming(source: object) -> Iterator[None]:
    """Turn a broken rule into a ``DataError`` that names the file."""
    try:
        yield
    except _BrokenError as error:
        raise DataError(f"{source} {error}: the checkpoint is broken; use another one") from None


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise _BrokenError(rule)


def _read(path: Path) -> bytes:
    try:
        return files.read_file(path, MAX_BYTES)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}): the checkpoint is not complete; "
            "use another one"
        ) from None


def _parse_json(content: bytes, source: object) -> Any:
    try:
        if len(content) > MAX_BYTES:
            raise ValueError("too long")
        return json.loads(content.decode("utf-8"))
    # Nested brackets end in a RecursionError.
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{source} is no JSON ({error}): the checkpoint is broken; use another one"
        ) from None


def _checksum(body: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _parse(body: dict[str, Any]) -> Part:
    for name in ("update", "serial"):
        _require(_is_count(body.get(name)), f"has no {name}")
    for name in ("values", "about"):
        _require(isinstance(body.get(name), dict), f"has no {name}")
    save: Any = ""
    hosts: Any = ()
    files: Any = body.get("files")
    if body["format"] == FORMAT:
        _require(isinstance(files, list) and bool(files), "has no files")
        parsed = dict(enumerate(map(_parse_file, files)))
        check_slices(tuple(parsed.values()))
    else:
        save, hosts = body.get("save"), body.get("hosts")
        _require(isinstance(save, str) and bool(save), "has no save")
        _require(
            isinstance(hosts, list)
            and 0 < len(hosts) <= _MAX_RANKS
            and all(isinstance(host, str) and host.isprintable() for host in hosts),
            "has no hosts",
        )
        _require(isinstance(files, dict), "has no files")
        ranks = {str(rank): rank for rank in range(len(hosts))}
        _require(set(files) <= set(ranks), "has a file of no rank")
        parsed = {ranks[name]: _parse_file(file) for name, file in files.items()}
    numbers = body["update"], body["serial"]
    return Part(*numbers, save, tuple(hosts), parsed, body["values"], body["about"])


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
