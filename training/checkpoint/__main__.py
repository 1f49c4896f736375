"""The command that inspects, verifies and merges checkpoints.

    python -m training.checkpoint info PATH      prints the contents
    python -m training.checkpoint verify PATH    reads everything and compares every checksum
    python -m training.checkpoint merge PATH     joins the arrays of all ranks in one .npz file

PATH is a checkpoint, as in models/checkpoints/update-00002000. Needs neither MXNet nor Horovod, nor
the number of ranks that wrote it.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from runtime.command_line import Parser
from runtime.errors import DataError, run_program
from runtime.state import OWN, REPLICATED, SHARDED
from training.checkpoint.layout import Checkpoint, Entry

_ROWS = 4096


def info(checkpoint: Checkpoint) -> str:
    """Describe a checkpoint: its run, its values and its arrays."""
    manifest = checkpoint.manifest
    lines = [
        f"{checkpoint.path}: {manifest.update:,} updates, written by {manifest.world_size} ranks"
    ]
    lines += [f"  {name}: {_plain(value)}" for name, value in manifest.about.items()]
    lines += [f"  {part}: {_plain(values)}" for part, values in manifest.values.items() if values]
    entries = manifest.files[0].entries
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
        for rank, file in enumerate(manifest.files)
    ]
    return "\n".join(lines)


def verify(checkpoint: Checkpoint) -> str:
    """Read every file of a checkpoint; ``DataError`` if one is missing, cut off or changed."""
    for rank in range(checkpoint.manifest.world_size):
        checkpoint.verify(rank)
    size = sum(file.size for file in checkpoint.manifest.files)
    return f"{checkpoint.path} is intact: {checkpoint.manifest.world_size} files, {size:,} bytes"


def merge(checkpoint: Checkpoint, output: Path) -> str:
    """Write all arrays into one ``.npz`` file, as one rank would hold them.

    Of arrays that each rank has for itself, the mean is taken. Only a part of an array is in memory
    at a time.

    Raises:
        DataError: the checkpoint is broken, or the file cannot be written.
    """
    verify(checkpoint)
    partial = output.with_name(f".{output.name}.part")
    try:
        with zipfile.ZipFile(partial, "w") as archive:
            for entry in checkpoint.manifest.files[0].entries:
                _add(archive, entry, _parts(checkpoint, entry))
        partial.replace(output)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DataError(f"{output} cannot be written ({error.strerror}); choose another") from None
    return f"{output}: {len(checkpoint.manifest.files[0].entries)} arrays, for numpy.load"


def _add(archive: zipfile.ZipFile, entry: Entry, parts: Iterator[NDArray[Any]]) -> None:
    """Write an array as ``numpy.savez`` does, from its parts."""
    header = {"descr": np.dtype(entry.dtype).str, "fortran_order": False, "shape": _shape(entry)}
    with archive.open(f"{entry.name}.npy", "w", force_zip64=True) as file:
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
        prog="python -m training.checkpoint", description="Inspect, verify or merge a checkpoint."
    )
    parser.add_argument("action", choices=("info", "merge", "verify"))
    parser.add_argument("path", type=Path, metavar="PATH", help="the folder of a checkpoint")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="of merge (default PATH with .npz)"
    )
    options = parser.parse_args(argv)
    if options.output is not None and options.action != "merge":
        parser.error(f"--output {options.output} goes with merge, not with {options.action}")
    checkpoint = Checkpoint(options.path)
    if options.action == "merge":
        output = options.output or options.path.with_name(f"{options.path.name}.npz")
        print(merge(checkpoint, output))
    else:
        print(info(checkpoint) if options.action == "info" else verify(checkpoint))


if __name__ == "__main__":
    run_program(main)
