"""Writing identity-grouped sets, of the forms that ``record_set`` and ``shards`` describe."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from typing_extensions import Self

from data.records.recordio import FLOAT32_EXACT, Payload, encode
from data.records.shards import allow_open_files, shard_path, shards_of
from runtime.errors import ConfigError, undisturbed
from runtime.files import StagedFiles, as_data_error


class RecordWriter:
    """Writes a set; its files appear under their final names only when all are complete.

    A context manager: leaving it with an exception removes what has been written.
    """

    def __init__(
        self, path: Path, *, image_size: tuple[int, int], shards: Sequence[int] = ()
    ) -> None:
        """Begin ``train.rec`` or the first shard in a folder, or a ``.rec`` file.

        Args:
            path: of the folder or file.
            image_size: height and width.
            shards: how many identities go into each shard of a folder; the last takes all others.
                Without any, the set is one file.

        Raises:
            ConfigError: the folder for shards holds a set of one file, which would be read instead.
            DataError: the folder cannot be written to.
        """
        self._paths = [path if path.suffix == ".rec" else path / "train.rec"]
        # Files of a former set that contradict the new ones.
        self._former: list[Path] = []
        if shards:
            if self._paths[0].exists():
                raise ConfigError(
                    f"{path} holds train.rec, which would be read instead of shards; move it away "
                    "or choose another folder"
                )
            allow_open_files()
            self._paths = [shard_path(path, number) for number in range(len(shards))]
            others = [each for each in shards_of(path) if each not in self._paths]
            endings = (".rec", ".idx", ".idx.cache", ".labels.cache")
            self._former = [each.with_suffix(ending) for each in others for ending in endings]
        # The labels with which the files after the first begin.
        self._ends = [*accumulate(shards)][:-1]
        self._image_size = image_size
        self._files = StagedFiles()
        self._left = iter(self._paths)
        # In the files before this one.
        self._identities = 0

    def write(self, payload: Payload, label: int) -> None:
        """Append an encoded image; labels are 0, 1, 2, … in this order."""
        if self._ends and label == self._ends[0]:
            self._ends.pop(0)
            with undisturbed():
                self._finish()
                self._begin()
        own = label - self._identities
        if own == len(self._starts):
            assert own < FLOAT32_EXACT, "labels are float32 in a record file"
            self._starts.append(len(self._offsets))
        assert own == len(self._starts) - 1, f"identity {own} is out of order"
        self._append((float(own),), payload)

    def __enter__(self) -> Self:
        try:
            with undisturbed():
                self._begin()
        except BaseException:
            self._files.discard()
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # All files get their names, or none of them.
        with undisturbed():
            try:
                if error is None:
                    self._finish()
                    self._publish()
            finally:
                self._files.discard()

    def _begin(self) -> None:
        self._path = next(self._left)
        with as_data_error(f"{self._path} cannot be written"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._files.open(self._path)
        # The current file: keys of identities' first images, offsets of its records, its size.
        self._starts: list[int] = []
        self._offsets = array("q")
        self._size = 0
        self._append((0.0, 0.0), b"")

    def _append(self, labels: tuple[float, ...], payload: Payload) -> None:
        key = len(self._offsets)
        self._offsets.append(self._size)
        # Counted here, since tell() is a system call.
        self._size += self._file.write(encode(labels, key, payload))

    def _finish(self) -> None:
        """Append the identity records of a file, and write its index."""
        first = len(self._offsets)
        for start, stop in zip(self._starts, [*self._starts[1:], first]):
            self._append((float(start), float(stop)), b"")
        # Replaces the first record, which was written before its keys were known; same size.
        self._file.seek(0)
        self._file.write(encode((float(first), float(len(self._offsets))), 0, b""))
        lines = (f"{key}\t{offset}\n" for key, offset in enumerate(self._offsets))
        self._files.open(self._path.with_suffix(".idx")).write("".join(lines).encode())
        self._identities += len(self._starts)

    def _publish(self) -> None:
        """Give the files their names when all are complete.

        A ``.rec`` without the other files is a set, too: a reader that opens it meanwhile sees the
        old set or the new one, never the ``.rec`` of one with the index of the other. Shards
        without ``property`` are none.
        """
        height, width = self._image_size
        description = self._path.with_name("property")
        self._files.open(description).write(f"{self._identities},{height},{width}\n".encode())
        indexes = [path.with_suffix(".idx") for path in self._paths]
        self._files.publish(remove_first=[description, *indexes, *self._former])
