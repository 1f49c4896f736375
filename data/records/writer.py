"""Writing an identity-grouped record set, of the form that ``record_set`` describes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

from data.records.recordio import FLOAT32_EXACT, Payload, encode
from runtime.errors import DataError
from runtime.files import StagedFiles


class RecordWriter:
    """Writes an identity-grouped set; it appears under its final name only when it is complete.

    A context manager: leaving it with an exception removes what has been written.
    """

    def __init__(self, path: Union[str, os.PathLike[str]], *, image_size: tuple[int, int]) -> None:
        """Begin ``train.rec`` in a folder, or a ``.rec`` file.

        Raises:
            DataError: the folder cannot be written to.
        """
        path = Path(path)
        self.path = path if path.suffix == ".rec" else path / "train.rec"
        self._files = StagedFiles()
        self._image_size = image_size
        self._starts: list[int] = []
        self._index: list[str] = []
        self._size = 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._files.open(self.path)
        except OSError as error:
            raise DataError(f"{self.path} cannot be written: {error.strerror}") from None
        self._append((0.0, 0.0), b"")

    def write(self, payload: Payload, label: int) -> None:
        """Append an encoded image; labels are 0, 1, 2, … in this order."""
        if label == len(self._starts):
            assert label < FLOAT32_EXACT, "labels are float32 in a record file"
            self._starts.append(len(self._index))
        assert label == len(self._starts) - 1, f"identity {label} is out of order"
        self._append((float(label),), payload)

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                self._write_identities()
                self._publish()
        finally:
            self._files.discard()

    def _append(self, labels: tuple[float, ...], payload: Payload) -> None:
        key = len(self._index)
        self._index.append(f"{key}\t{self._size}\n")
        # Counted here, since tell() is a system call.
        self._size += self._file.write(encode(labels, key, payload))

    def _write_identities(self) -> None:
        first = len(self._index)
        for start, stop in zip(self._starts, [*self._starts[1:], first]):
            self._append((float(start), float(stop)), b"")
        # Replaces the first record, which was written before its keys were known; same size.
        self._file.seek(0)
        self._file.write(encode((float(first), float(len(self._index))), 0, b""))

    def _publish(self) -> None:
        """Give the files their names when all are complete.

        A ``.rec`` without the other files is a set, too: a reader that opens it meanwhile sees the
        old set or the new one, never the ``.rec`` of one with the index of the other.
        """
        height, width = self._image_size
        description = f"{len(self._starts)},{height},{width}\n"
        others = [self.path.with_suffix(".idx"), self.path.with_name("property")]
        for path, content in zip(others, ("".join(self._index), description)):
            self._files.open(path).write(content.encode())
        self._files.publish(remove_first=others)
