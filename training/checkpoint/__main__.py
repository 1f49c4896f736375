"""The command that inspects, verifies and merges checkpoints.

    python -m training.checkpoint info PATH      prints the contents
    python -m training.checkpoint verify PATH    reads everything and compares every checksum
    python -m training.checkpoint merge PATH     joins the arrays of all ranks in one .npz file

PATH is a checkpoint, as in models/checkpoints/update-00002000, or this host's part of one. Needs
neither MXNet nor Horovod, nor the number of ranks that wrote it; what is broken, missing or of
another run is a ``DataError``. If the class centers are in a
store, its folder is given with --center-store: a manifest, which may come from anywhere, names no
file that is opened.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from partial_fc.store.header import Origin
from partial_fc.store.saved_rows import SavedRows
from runtime.command_line import Parser
from runtime.errors import DataError, run_program
from runtime.files import StagedFiles, as_data_error
from runtime.state import OWN, REPLICATED, SHARDED
from training.checkpoint import layout
from training.checkpoint.layout import Entry, Part
from training.checkpoint.reader import Checkpoint

# The part of a checkpoint that has the class centers.
_HEAD = "head"


def info(checkpoint: Checkpoint, rows: Optional[SavedRows]) -> str:
    """Describe a checkpoint, or a host's part of one: its run, its values and its arrays."""
    part = checkpoint.manifest
    lines = [f"{checkpoint.path}: {part.update:,} updates, written by {part.world_size} ranks"]
    values = {name: value for name, value in part.values.items() if value}
    for name, value in (*part.about.items(), *values.items()):
        lines.append(f"  {name}: {value if isinstance(value, str) else json.dumps(value)}")
    for entry in checkpoint.entries.values():
        lines.append(f"  {entry.name:<40}{entry.kind:<12}{entry.dtype:<9}{_shape(entry)}")
    for rank, file in part.files.items():
        slices = [f"{e.start:,} to {e.stop - 1:,}" for e in file.entries if e.kind == SHARDED]
        classes = f", classes {slices[0]}" if slices else ""
        lines.append(f"rank {rank}: {file.size:,} bytes{classes}")
    lines += [f"rank {rank}: on {part.hosts[rank]}" for rank in part.missing]
    if rows is not None:
        arrays = [f"{name} {dtype} {shape}" for name, (dtype, shape) in rows.shapes.items()]
        lines.append(f"the store: {rows.header.span}, of each {', '.join(arrays)}")
    return "\n".join(lines)


def verify(checkpoint: Checkpoint, rows: Optional[SavedRows]) -> str:
    """Read every file of a checkpoint that is here, and the rows of its store."""
    part = checkpoint.manifest
    for rank in part.files:
        checkpoint.verify(rank)
    size = sum(file.size for file in part.files.values())
    lines = [f"{checkpoint.path} is intact: {len(part.files)} files, {size:,} bytes"]
    if part.missing:
        lines.append(f"it lacks {layout.lacking(part.missing, part.hosts)}")
    if rows is not None:
        lines.append(f"the store is intact: {rows.verify():,} rows of {rows.header.span}")
    return "\n".join(lines)


def merge(checkpoint: Checkpoint, rows: Optional[SavedRows], output: Path) -> str:
    """Write all arrays into one ``.npz`` file, as one rank would hold them.

    Of arrays that each rank has for itself, the mean is taken. Only a part of an array is in memory
    at a time.
    """
    path, missing, hosts = checkpoint.path, checkpoint.manifest.missing, checkpoint.manifest.hosts
    if missing:
        raise DataError(
            f"{path} lacks {layout.lacking(missing, hosts)}; bring them here with "
            f"{layout.rsync([hosts[rank] for rank in missing], path)}"
        )
    verify(checkpoint, None)
    arrays: list[tuple[str, str, tuple[int, ...], Iterable[NDArray[Any]]]] = [
        (entry.name, entry.dtype, _shape(entry), _pieces(checkpoint, entry))
        for entry in checkpoint.entries.values()
    ]
    if rows is not None:
        header = rows.header
        if (header.first, header.last) != (0, header.classes):
            raise DataError(
                f"the --center-store has {header.span}, as other hosts have the others; "
                "only a store of all classes is merged"
            )
        for name, (dtype, shape) in rows.shapes.items():
            arrays.append((f"{_HEAD}/{name}", dtype, (header.classes, *shape), rows.rows(name)))
    with as_data_error(f"{output} cannot be written", "choose another"), StagedFiles() as files:
        with zipfile.ZipFile(files.open(output), "w") as archive:
            for name, dtype, shape, pieces in arrays:
                # As ``numpy.savez`` writes it, which would need the whole array.
                about = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array_header_1_0(file, about)  # type: ignore[no-untyped-call]
                    for piece in pieces:
                        file.write(np.ascontiguousarray(piece).data)
    return f"{output}: {len(arrays)} arrays, for numpy.load"


def _open_store(
    part: Part, folder: Optional[Path], action: str
) -> AbstractContextManager[Optional[SavedRows]]:
    """Open the store with the class centers; None if there is none, or ``info`` got no folder."""
    origin = Origin.of(part.values.get(_HEAD, {}))
    if origin is not None and folder is not None:
        return SavedRows(folder, origin, part.update)
    if origin is not None and action != "info":
        raise DataError(
            "the checkpoint has its class centers in a store; add --center-store DIR, the folder "
            "that its run was given"
        )
    return nullcontext()


def _shape(entry: Entry) -> tuple[int, ...]:
    return (entry.total, *entry.shape[1:]) if entry.kind == SHARDED else entry.shape


def _pieces(checkpoint: Checkpoint, entry: Entry) -> Iterable[NDArray[Any]]:
    if entry.kind == OWN:
        # The mean, as for any number of ranks other than that of the checkpoint.
        return [checkpoint.own(entry.name, rank=0, world_size=0)]
    if entry.kind == REPLICATED:
        return [checkpoint.replicated(entry.name)]
    return (rows for _, rows in checkpoint.pieces(entry.name, 0, entry.total))


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
    action, path = options.action, options.path
    if options.output is not None and action != "merge":
        parser.error(f"--output {options.output} goes with merge, not with {action}")
    checkpoint = Checkpoint(path)
    with _open_store(checkpoint.manifest, options.center_store, action) as rows:
        if action == "merge":
            output = options.output or path.with_name(f"{path.name}.npz")
            print(merge(checkpoint, rows, output))
        else:
            print((info if action == "info" else verify)(checkpoint, rows))


if __name__ == "__main__":
    run_program(main)
