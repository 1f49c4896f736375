"""Checkpoints on disk: each rank writes one file, and a rename makes all of them a checkpoint.

    MODELS_ROOT/checkpoints/update-00002000/
        manifest.json     the arrays, their files and checksums; all values that are no arrays
        rank-0000.bin     the arrays of rank 0, each at a multiple of 64 bytes
        rank-0001.bin     ...

All ranks write into one hidden folder. When a rank's file is on the disk, the rank writes a marker
beside it; the first rank waits for the markers of all, joins them into the manifest and renames the
folder. With this rename the checkpoint exists; before it, no later run can take the folder for
one. No message passes between the ranks, so all this can happen in background threads while the
ranks train. The name of the hidden folder contains a random word of the run, so the remains of a
killed run are never used.

A checkpoint of an update that has one already gets another name, with its serial at the end, and
the former one is removed when the new one exists. So one of them exists at every moment.

Where hosts have folders of their own (``run_folder.Storage``), the ranks of each do all this for
themselves, and a checkpoint exists when every folder has its part. So nothing older is removed from
a folder before the main threads of all ranks have met and know that: see ``settle``.

The checksums are CRC-32. They detect damage by disks, networks and full file systems, not by
people; CRC-32 reads 0.9 GB/s here, BLAKE2 and SHA-256 0.2.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from runtime.errors import DataError
from runtime.files import (
    StagedFiles,
    as_data_error,
    flush_folder,
    make_folder,
    write_atomically,
)
from runtime.state import Stored
from training.checkpoint import layout
from training.checkpoint.layout import CHUNK, Entry, Part, RankFile

FOLDER = "checkpoints"
_NAME = re.compile(r"update-(\d{8,})(-\d+)?")
_ALIGNMENT = 64
_POLL_SECONDS = 0.05


def name_of(update: int) -> str:
    """Return the name of a checkpoint's folder, if no other one has it."""
    return f"update-{update:08d}"


def hidden_folder(checkpoint: Path, attempt: str) -> Path:
    """Return the folder in which a checkpoint is written before it exists."""
    return checkpoint.with_name(f".{checkpoint.name}.{attempt}.part")


def write_rank(folder: Path, rank: int, arrays: Mapping[str, Stored]) -> None:
    """Write a rank's arrays and then its marker; the arrays are on the disk on return.

    Raises:
        DataError: a number is not finite.
        OSError: the hidden ``folder`` cannot be made or written, or the folder of checkpoints is
            gone.
    """
    folder.mkdir(exist_ok=True)
    partial = folder / f".{_marker(rank)}"
    with StagedFiles() as staged:
        file = staged.open(folder / layout.file_name(rank))
        entries = [_write_array(file, name, array) for name, array in arrays.items()]
        table = RankFile(file.tell(), tuple(entries))
        staged.open(partial).write(json.dumps(asdict(table)).encode())
    # The first rank may publish now, after which there is no such folder any more.
    partial.rename(folder / _marker(rank))


def publish(
    folder: Path,
    final: Path,
    header: Part,
    ranks: Sequence[int],
    keep: int,
    cancelled: threading.Event,
) -> None:
    """Wait for the files of some ranks, and make a checkpoint of them; on the first of these ranks.

    Args:
        folder: the hidden one.
        final: the checkpoint, which does not exist.
        header: of the manifest, without files.
        ranks: which write into ``folder``.
        keep: how many checkpoints stay. All do, if other folders have parts of this one.
        cancelled: set when a rank has failed, which leaves no marker; ends the waiting.

    Raises:
        DataError: it is cancelled, or the files do not match.
        OSError: the folder cannot be written.
    """
    markers = {rank: folder / _marker(rank) for rank in ranks}
    while not all(marker.exists() for marker in markers.values()):
        if cancelled.wait(_POLL_SECONDS):
            raise DataError("another rank could not write its file")
        if not folder.exists():
            raise FileNotFoundError(2, "the folder has vanished", str(folder))
    files = {rank: layout.read_file(marker) for rank, marker in markers.items()}
    content = replace(header, files=files).dump().encode()
    layout.parse(content, f"the checkpoint of update {header.update}")
    write_atomically(folder / layout.manifest_name(min(ranks)), content)
    for marker in markers.values():
        marker.unlink()
    flush_folder(folder)
    folder.rename(final)
    flush_folder(final.parent)
    if not header.hosts:
        settle(folder.parent, keep)


def settle(root: Path, keep: int) -> None:
    """Remove all but the newest checkpoints of ``keep`` updates."""
    kept: set[int] = set()
    for path, part in candidates(root):
        if part.world_size and (part.update in kept or len(kept) == keep):
            remove(path)
        elif part.world_size:
            kept.add(part.update)


def prepare(root: Path) -> None:
    """Make the folder of checkpoints, and remove the remains of killed runs there."""
    make_folder(root)
    flush_folder(root.parent)
    for left in root.glob(".update-*"):
        shutil.rmtree(left, ignore_errors=True)


def candidates(root: Path) -> list[tuple[Path, Part]]:
    """List what may be resumed: folders without a readable manifest, then the newest first.

    A broken one comes first so that it is tried, and reported, before another is used instead.
    """
    with as_data_error(f"{root} cannot be read", "see its permissions"):
        everything = root.iterdir() if root.is_dir() else ()
        paths = [path for path in everything if _NAME.fullmatch(path.name)]
    found = [(path, part_in(path)) for path in sorted(paths, reverse=True)]
    return sorted(found, key=lambda one: one[1].age, reverse=True)


def part_in(folder: Path) -> Part:
    """Return what a folder has of a checkpoint; of no ranks if its manifest cannot be read."""
    try:
        return layout.read_part(folder)
    except DataError:
        return layout.UNREADABLE


def remove(checkpoint: Path) -> None:
    """Remove a checkpoint, if it exists; after the rename it is not found any more."""
    if checkpoint.exists():
        hidden = checkpoint.with_name(f".{checkpoint.name}.removed")
        shutil.rmtree(hidden, ignore_errors=True)
        checkpoint.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def set_aside(checkpoint: Path) -> Path:
    """Rename a broken checkpoint, so that it is neither tried again nor counted."""
    aside = checkpoint.with_name(f"{checkpoint.name}.broken")
    shutil.rmtree(aside, ignore_errors=True)
    return checkpoint.rename(aside)


def _write_array(file: BinaryIO, name: str, stored: Stored) -> Entry:
    flat = np.ascontiguousarray(stored.array).reshape(-1)
    file.write(bytes(-file.tell() % _ALIGNMENT))
    offset, checksum, size = file.tell(), 0, CHUNK // flat.itemsize
    for first in range(0, flat.size, size):
        chunk = flat[first : first + size]
        if chunk.dtype.kind == "f" and not np.isfinite(chunk).all():
            raise DataError(
                f"{name!r} holds numbers that are not finite, so it is not saved; "
                "resume from the checkpoint before with a lower --lr"
            )
        content = chunk.view(np.uint8).data
        checksum = zlib.crc32(content, checksum)
        file.write(content)
    place = stored.start, stored.total, offset, checksum
    return Entry(name, stored.kind, flat.dtype.name, stored.array.shape, *place)


def _marker(rank: int) -> str:
    return f"rank-{rank:04d}.json"
