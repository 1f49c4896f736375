"""What a store says of itself: ``store.json``, which is replaced as a whole.

It names the store by a random number, which the checkpoints that need it repeat, so that no
checkpoint is joined with the centers of another run.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np

from partial_fc.shard import RowState
from partial_fc.store.index import ENTRY, Index, in_order_of_classes
from partial_fc.store.records import Layout
from runtime.errors import DataError
from runtime.files import open_regular, read_file, write_atomically

FILE_NAME = "store.json"
RECORDS, INDEX, LOCK = "records.bin", "index.bin", "lock"
# Of the first format, instead of an index.
CHECKS = "checks.bin"
# In a checkpoint, the number of the store that has the rows.
STORE = "center_store"
# The first one has no index: record c is that of class c.
FIRST_FORMAT, FORMAT = "class centers 1", "class centers 2"


@dataclass(frozen=True)
class Header:
    """A store.

    Attributes:
        number: names it.
        classes: of all ranks.
        embedding: D.
        states: of the optimizer, by name: type, and whether it is as wide as the centers.
        seed: of the initial centers.
        first: the first class that is here; others may be on other hosts.
        last: one past the last.
        saved: the update of the last checkpoint that was begun; -1 if there is none.
        confirmed: whether a checkpoint exists. A process that is killed while the first one is
            written leaves a store of which that is not known.
        run: the folder of the run that uses it; empty if not known.
        format: what its files are.
    """

    number: int
    classes: int
    embedding: int
    states: Mapping[str, tuple[str, bool]]
    seed: int
    first: int
    last: int
    saved: int = -1
    confirmed: bool = False
    run: str = ""
    format: str = FORMAT

    def write(self, folder: Path) -> None:
        """Replace the header of a folder.

        Raises:
            OSError: it cannot be written.
        """
        about = asdict(self)
        about["checksum"] = _checksum(about)
        write_atomically(folder / FILE_NAME, json.dumps(about, indent=1).encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Optional[Header]:
        """Read the header of a folder; None if there is none.

        Raises:
            DataError: it is damaged.
        """
        path = folder / FILE_NAME
        try:
            about = json.loads(read_file(path))
            checksum = about.pop("checksum")
            if about["format"] not in (FIRST_FORMAT, FORMAT):
                raise ValueError
            states = {name: (dtype, wide) for name, (dtype, wide) in about["states"].items()}
            if not {*states.values()} <= {("float32", True), ("int32", False)}:
                raise ValueError
            header = cls(**{**about, "states": states})
            if checksum != _checksum(asdict(header)):
                raise ValueError
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError(
                f"{path} is damaged, or of another version; bring it back from a copy, or delete "
                "the folder and start anew with --resume never"
            ) from None
        return header

    @property
    def layout(self) -> Layout:
        """Of its records."""
        return Layout(
            self.embedding, {name: RowState(*about) for name, about in self.states.items()}
        )

    def check_files(self, folder: Path) -> None:
        """See that the file with an entry of each class is as long as that.

        Raises:
            DataError: it is not.
            OSError: it is missing.
        """
        name, size = (INDEX, ENTRY) if self.format == FORMAT else (CHECKS, 4)
        found = (folder / name).stat().st_size
        if found != size * self.classes:
            raise DataError(
                f"{name} has {found} bytes instead of {size * self.classes}: it is damaged"
            )

    def private_index(self, folder: Path) -> Index:
        """The index, of which this process may change its own copy alone.

        Raises:
            OSError: it cannot be read.
        """
        if self.format == FORMAT:
            with open_regular(folder / INDEX) as file:
                return Index(np.memmap(file, np.uint32, mode="c"))
        return in_order_of_classes(folder / CHECKS)

    def differences(self, other: Header) -> list[str]:
        """In what two stores have rows of other kinds, in words."""
        return [
            f"{name} {getattr(self, name)} there and {getattr(other, name)} here"
            for name in ("classes", "embedding", "states")
            if getattr(self, name) != getattr(other, name)
        ]


def states_of(layout: Layout) -> dict[str, tuple[str, bool]]:
    """What a header says of states."""
    return {name: (np.dtype(state.dtype).name, state.wide) for name, state in layout.states.items()}


def _checksum(about: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(about, sort_keys=True).encode())
