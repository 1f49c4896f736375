"""Checkpoints on disk: written piece by piece, visible only when complete, read by slices.

    MODELS_ROOT/checkpoints/update-00002000/
        manifest.json     what there is, where, with which checksum; and everything that is no array
        rank-0000.bin     the arrays of rank 0, each at a multiple of 64 bytes
        rank-0001.bin     ...

All ranks write into one hidden folder. When a rank's file is on the disk it leaves a marker beside
it; rank 0 waits for the markers of all, makes the manifest out of them and renames the folder. The
rename is the moment at which the checkpoint exists: before it there is nothing that a later run
could take for one. No message passes between the ranks, so all this can happen in background
threads while the ranks train; the name of the hidden folder holds a word that is drawn for each
run, so what a killed run has left behind counts for nothing.

A checkpoint that is written again takes the place of the former one in two renames. A run that is
killed between them leaves the former one under a hidden name, under which it still counts.

The checksums are CRC-32. They are to notice what disks, networks and full file systems do to
files, not people; CRC-32 reads 0.9 GB/s here, BLAKE2 and SHA-256 0.2.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from runtime.errors import DataError
from runtime.state import Stored
from training.checkpoint import manifest as manifests
from training.checkpoint.manifest import CHUNK, Entry, Manifest, RankFile

FOLDER = "checkpoints"
_NAME = re.compile(r"update-\d{8,}")
_FORMER = ".former"
_FORMER_NAME = re.compile(rf"\.({_NAME.pattern}){re.escape(_FORMER)}")
_ALIGNMENT = 64
_POLL_SECONDS = 0.05
# Beyond this a rank is not slow but gone; a launcher notices much earlier.
_PATIENCE_SECONDS = 1800.0


def name_of(update: int) -> str:
    """The folder of a checkpoint."""
    return f"update-{update:08d}"


def hidden_folder(checkpoint: Path, attempt: str) -> Path:
    """Where a checkpoint is written before it exists."""
    return checkpoint.with_name(f".{checkpoint.name}.{attempt}.part")


def write_rank(folder: Path, rank: int, arrays: Mapping[str, Stored]) -> None:
    """Write a rank's arrays and then its marker; both are on the disk on return.

    Args:
        folder: the hidden folder; made if it is not there.
        rank: this rank.
        arrays: what it writes, by name.

    Raises:
        DataError: a number is not finite.
        OSError: the file system refuses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / manifests.file_name(rank)).open("wb") as file:
        entries = [_write_array(file, name, array) for name, array in arrays.items()]
        size = file.tell()
        _flush(file)
    text = manifests.dump_file(RankFile(size, tuple(entries)))
    _write_text(folder / _marker(rank), text)


def publish(
    folder: Path,
    world_size: int,
    *,
    update: int,
    values: Mapping[str, Any],
    about: Mapping[str, Any],
    keep: int,
) -> Path:
    """Wait for the files of all ranks, and make a checkpoint of them; for rank 0.

    Returns:
        The checkpoint.

    Raises:
        DataError: a rank has failed, or does not come.
        OSError: the file system refuses.
    """
    root = folder.parent
    markers = [folder / _marker(rank) for rank in range(world_size)]
    _await(markers, folder)
    files = tuple(manifests.read_file(marker) for marker in markers)
    manifests.check_slices(files)
    manifest = Manifest(update, _next_serial(root), files, dict(values), dict(about))
    _write_text(folder / manifests.FILE_NAME, manifest.dump())
    for marker in markers:
        marker.unlink()
    _sync_folder(folder)
    final = root / name_of(update)
    former = final.with_name(f".{final.name}{_FORMER}")
    if final.exists():
        # One that has been left there counts for nothing as long as there is a final one.
        _remove(former)
        final.rename(former)
    folder.rename(final)
    _sync_folder(root)
    _remove(former)
    for old in _by_age(root)[keep:]:
        _remove(old)
    return final


def report_failure(folder: Path, rank: int, reason: str) -> None:
    """Tell rank 0 not to wait for a rank; it may be that the disk takes not even that."""
    try:
        (folder / f"rank-{rank:04d}.failed").write_text(reason, encoding="utf-8")
    except OSError:
        pass


def discard(folder: Path) -> None:
    """Remove a hidden folder."""
    shutil.rmtree(folder, ignore_errors=True)


def make_folder(root: Path) -> None:
    """Make the folder of checkpoints, such that it survives a power cut with what will be in it.

    Raises:
        OSError: the file system refuses.
    """
    missing = [folder for folder in (root, *root.parents) if not folder.exists()]
    root.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        _sync_folder(folder.parent)


def recover(root: Path) -> None:
    """Give former checkpoints their names back where no later ones have come; for rank 0."""
    for path in _checkpoints(root):
        former = _FORMER_NAME.fullmatch(path.name)
        if former:
            # In a folder that cannot be written to it counts under its hidden name.
            with suppress(OSError):
                path.rename(root / former[1])


def sweep(root: Path) -> None:
    """Remove what killed runs have left behind; for rank 0, before anybody writes."""
    recover(root)
    for left in root.glob(".update-*"):
        discard(left)
    for left in root.glob(".run-*"):
        left.unlink()


def candidates(root: Path) -> list[Path]:
    """The checkpoints in a folder, the newest first; those without a readable manifest before all.

    A broken one comes first so that it is tried, and named, before another is used in its place.
    """
    folders = sorted(_checkpoints(root), reverse=True)
    return [folder for folder in folders if _age(folder) is None] + _by_age(root)


def _write_array(file: Any, name: str, stored: Stored) -> Entry:
    array = np.ascontiguousarray(stored.array).reshape(stored.array.shape)
    file.write(bytes(-file.tell() % _ALIGNMENT))
    offset, checksum = file.tell(), 0
    for chunk in _chunks(array):
        if array.dtype.kind == "f" and not np.isfinite(chunk).all():
            raise DataError(
                f"{name!r} holds numbers that are not finite, so it is not saved; "
                "go on from the checkpoint before with a lower --lr"
            )
        content = chunk.view(np.uint8).data
        checksum = zlib.crc32(content, checksum)
        file.write(content)
    return Entry(
        name,
        stored.kind,
        array.dtype.name,
        array.shape,
        stored.start,
        stored.total,
        offset,
        checksum,
    )


def _chunks(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    flat = array.reshape(-1)
    step = CHUNK // array.itemsize
    for first in range(0, flat.size, step):
        yield flat[first : first + step]


def _marker(rank: int) -> str:
    return f"rank-{rank:04d}.json"


def _await(markers: list[Path], folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while missing := [marker for marker in markers if not marker.exists()]:
        for failed in sorted(folder.glob("*.failed")):
            raise DataError(f"{failed.stem.replace('-', ' ')}: {failed.read_text()}")
        if not folder.exists():
            raise FileNotFoundError(2, "the folder has vanished", str(folder))
        if time.monotonic() > deadline:
            raise DataError(f"{missing[0].stem.replace('-', ' ')} has not written its part")
        time.sleep(_POLL_SECONDS)


def _write_text(path: Path, text: str) -> None:
    """Write a file that is there, whole and on the disk, or not there."""
    partial = path.with_name(f".{path.name}")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        _flush(file)
    partial.rename(path)
    _sync_folder(path.parent)


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checkpoints(root: Path) -> list[Path]:
    """The complete ones, with those that were killed while they were written again."""
    try:
        paths = {path.name: path for path in root.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DataError(f"{root} cannot be read ({error.strerror}); see to its rights") from None
    found = [path for name, path in paths.items() if _NAME.fullmatch(name)]
    formers = [match for match in map(_FORMER_NAME.fullmatch, paths) if match]
    return found + [paths[match[0]] for match in formers if match[1] not in paths]


def _age(folder: Path) -> Optional[tuple[int, int]]:
    try:
        manifest = manifests.read(folder)
    except DataError:
        return None
    return manifest.serial, manifest.update


def _by_age(root: Path) -> list[Path]:
    """The checkpoints whose manifests are intact, the newest first."""
    ages = {path: _age(path) for path in _checkpoints(root)}
    known = [(age, path) for path, age in ages.items() if age is not None]
    return [path for _, path in sorted(known, reverse=True)]


def _next_serial(root: Path) -> int:
    ages = [_age(path) for path in _checkpoints(root)]
    return 1 + max((age[0] for age in ages if age is not None), default=0)


def _remove(checkpoint: Path) -> None:
    """Take a checkpoint away: it vanishes at once, however long the removal takes."""
    if checkpoint.exists():
        hidden = checkpoint.with_name(f".{checkpoint.name.lstrip('.')}.removed")
        discard(hidden)
        checkpoint.rename(hidden)
        discard(hidden)


def set_aside(checkpoint: Path) -> Path:
    """Rename a broken checkpoint, so that it is neither tried again nor counted; for rank 0."""
    aside = checkpoint.with_name(f"{checkpoint.name}.broken")
    shutil.rmtree(aside, ignore_errors=True)
    return checkpoint.rename(aside)
