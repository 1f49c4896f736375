"""The command that inspects, verifies and merges checkpoints.

    python -m training.checkpoint info PATH      prints the contents
    python -m training.checkpoint verify PATH    reads everything and compares every checksum
    python -m training.checkpoint merge PATH     joins the arrays of all ranks in one .npz file

PATH is a checkpoint, as in models/checkpoints/update-00002000, or this host's part of one. Needs
neither MXNet nor Horovod, nor the number of ranks that wrote it. If the class centers are in a
store, its folder is given with --center-store: a manifest, which may come from anywhere, names no
file that is opened.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from partial_fc.store.header import STORE, Header, Origin
from partial_fc.store.saved_rows import SavedRows
from runtime.command_line import Parser
from runtime.errors import DataError, run_program
from runtime.files import StagedFiles
from runtime.state import OWN, REPLICATED, SHARDED
from training.checkpoint import layout
from training.checkpoint.layout import Entry, Part
from training.checkpoint.reader import Checkpoint, open_part

_ROWS = 4096
# The part of a checkpoint that has the class centers.
_HEAD = "head"


def info(path: Path, store: Optional[Path] = None) -> str:
    """Describe a checkpoint, or a host's part of one: its run, its values and its arrays.

    Raises:
        DataError: it is broken, or ``store`` is not that of its class centers.
    """
    part = open_part(path)
    lines = [f"{path}: {part.update:,} updates, written by {part.world_size} ranks"]
    lines += [f"  {name}: {_plain(value)}" for name, value in part.about.items()]
    lines += [f"  {name}: {_plain(values)}" for name, values in part.values.items() if values]
    # Not all ranks have those that are the same on all.
    entries = max((file.entries for file in part.files.values()), key=len, default=())
    for kind, meaning in (
        (SHARDED, "cut over the ranks"),
        (REPLICATED, "the same on all ranks"),
        (OWN, "each rank's own"),
    ):
        chosen = [entry for entry in entries if entry.kind == kind]
        lines.append(f"{len(chosen)} arrays {meaning}")
        lines += [f"  {entry.name:<40}{entry.dtype:<9}{_shape(entry)}" for entry in chosen]
    lines += [
        f"rank {rank}: {file.size:,} bytes{_classes(file.entries)}"
        for rank, file in sorted(part.files.items())
    ]
    lines += [f"rank {rank}: on {host}" for rank, host in _elsewhere(part).items()]
    if store is not None or _origin(part) is not None:
        lines.append(f"class centers in a store: {_described(part, store)}")
    return "\n".join(lines)


def verify(path: Path, store: Optional[Path] = None) -> str:
    """Read every file of a checkpoint that is here, and the rows of its store.

    Raises:
        DataError: one is missing, cut off or changed; or ``store`` is missing or another one.
    """
    part = open_part(path)
    said = _verify_files(path, part)
    if store is None and _origin(part) is None:
        return said
    if store is None:
        raise DataError(f"{said}; but its class centers are in a store: {_remedy(part)}")
    with _open_store(part, store) as rows:
        return f"{said}\n{store} is intact: {rows.verify():,} rows of {_classes_of(rows.header)}"


def _verify_files(path: Path, part: Part) -> str:
    checkpoint = Checkpoint(path, part)
    for rank in part.files:
        checkpoint.verify(rank)
    size = sum(file.size for file in part.files.values())
    elsewhere = _elsewhere(part)
    if not elsewhere:
        return f"{path} is intact: {len(part.files)} files, {size:,} bytes"
    others = layout.lacking([*elsewhere], part.hosts)
    return (
        f"{path} has {len(part.files)} of {part.world_size} files, which are intact, {size:,} "
        f"bytes; it lacks {others}"
    )


def _origin(part: Part) -> Optional[Origin]:
    """The origin of class centers in a store; None if they are in the checkpoint."""
    return Origin.of(part.values.get(_HEAD))


def _remedy(part: Part) -> str:
    """Return the option that a command needs where the class centers are in a store."""
    options = part.about.get("configuration")
    folder = options.get(STORE) if isinstance(options, dict) else None
    given = f", for its run {folder}" if isinstance(folder, str) else ""
    return f"add --center-store DIR{given}"


def _open_store(part: Part, folder: Path) -> SavedRows:
    origin = _origin(part)
    if origin is None:
        raise DataError(
            f"--center-store {folder} is not needed: the checkpoint has its class centers; leave "
            "it out"
        )
    return SavedRows(folder, origin, part.update)


def _described(part: Part, folder: Optional[Path]) -> str:
    if folder is None:
        return _remedy(part)
    with _open_store(part, folder) as rows:
        arrays = ", ".join(
            f"{name} {dtype} {shape}" for name, (dtype, shape) in rows.shapes.items()
        )
        return f"{folder}, {_classes_of(rows.header)}, of each {arrays}"


def _classes_of(header: Header) -> str:
    if (header.first, header.last) == (0, header.classes):
        return f"{header.classes:,} classes"
    return f"classes {header.first:,} to {header.last - 1:,} of {header.classes:,}"


def _elsewhere(part: Part) -> dict[int, str]:
    """The ranks whose files are not here, and the hosts that wrote them."""
    return {rank: host for rank, host in enumerate(part.hosts) if rank not in part.files}


def merge(checkpoint: Checkpoint, output: Path, store: Optional[Path] = None) -> str:
    """Write all arrays into one ``.npz`` file, as one rank would hold them.

    Of arrays that each rank has for itself, the mean is taken. Only a part of an array is in memory
    at a time.

    Raises:
        DataError: the checkpoint is broken, its class centers are in a store that is not given, or
            the file cannot be written.
    """
    part = checkpoint.manifest
    _verify_files(checkpoint.path, part)
    if _origin(part) is not None and store is None:
        raise DataError(f"{checkpoint.path} has its class centers in a store: {_remedy(part)}")
    entries = part.files[0].entries
    count = len(entries)
    try:
        with StagedFiles() as files, zipfile.ZipFile(files.open(output), "w") as archive:
            for entry in entries:
                parts = _parts(checkpoint, entry)
                _add(archive, entry.name, entry.dtype, _shape(entry), parts)
            if store is not None:
                with _open_store(part, store) as rows:
                    count += _add_rows(archive, rows, store)
    except OSError as error:
        raise DataError(f"{output} cannot be written ({error.strerror}); choose another") from None
    return f"{output}: {count} arrays, for numpy.load"


def _add_rows(archive: zipfile.ZipFile, rows: SavedRows, store: Path) -> int:
    """Write the arrays of a store; returns how many these are."""
    header = rows.header
    if (header.first, header.last) != (0, header.classes):
        raise DataError(
            f"--center-store {store} has {_classes_of(header)}, as other hosts have the others; "
            "only a store of all classes is merged"
        )
    for name, (dtype, shape) in rows.shapes.items():
        _add(archive, f"{_HEAD}/{name}", dtype, (header.classes, *shape), rows.rows(name))
    return len(rows.shapes)


def _add(
    archive: zipfile.ZipFile,
    name: str,
    dtype: str,
    shape: tuple[int, ...],
    parts: Iterator[NDArray[Any]],
) -> None:
    """Write an array as ``numpy.savez`` does, from its parts."""
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
        for part in parts:
            file.write(np.ascontiguousarray(part).tobytes())


def _parts(checkpoint: Checkpoint, entry: Entry) -> Iterator[NDArray[Any]]:
    if entry.kind == OWN:
        # The mean, as for any number of ranks other than that of the checkpoint.
        yield checkpoint.own(entry.name, rank=0, world_size=0)
    elif entry.kind == REPLICATED:
        yield checkpoint.replicated(entry.name)
    else:
        for _, rows in checkpoint.pieces(entry.name, 0, entry.total):
            for first in range(0, len(rows), _ROWS):
                yield rows[first : first + _ROWS]


def _shape(entry: Entry) -> tuple[int, ...]:
    return (entry.total, *entry.shape[1:]) if entry.kind == SHARDED else entry.shape


def _classes(entries: Sequence[Entry]) -> str:
    sharded = next((entry for entry in entries if entry.kind == SHARDED), None)
    return "" if sharded is None else f", classes {sharded.start:,} to {sharded.stop - 1:,}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run the chosen action."""
    parser = Parser(
        prog="python -m training.checkpoint",
        description="Inspect, verify or merge a checkpoint.",
    )
    parser.add_argument("action", choices=("info", "merge", "verify"))
    parser.add_argument("path", type=Path, metavar="PATH", help="the folder of a checkpoint")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="of merge (default PATH with .npz)"
    )
    parser.add_argument(
        "--center-store",
        type=Path,
        metavar="DIR",
        help="where the class centers are, if not in the checkpoint",
    )
    options = parser.parse_args(argv)
    action, path, store = options.action, options.path, options.center_store
    if options.output is not None and action != "merge":
        parser.error(f"--output {options.output} goes with merge, not with {action}")
    if action == "merge":
        output = options.output or path.with_name(f"{path.name}.npz")
        print(merge(Checkpoint(path), output, store))
    else:
        print((info if action == "info" else verify)(path, store))


if __name__ == "__main__":
    run_program(main)
