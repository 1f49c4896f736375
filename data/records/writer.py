"""Writing identity-grouped sets, of the forms that ``record_set`` and ``shards`` describe."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from data.records.recordio import FLOAT32_EXACT, Payload, encode
from data.records.shards import allow_open_files, shard_path, shards_of
from runtime.errors import ConfigError, DataError
from runtime.files import StagedFiles
from runtime.stopping import undisturbed


class SetWriter:
    """Writes files of one set; they appear under their final names only when all are complete.

    A context manager: leaving it with an exception removes what has been written.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        identities: Sequence[int],
        image_size: tuple[int, int],
        former: Sequence[Path] = (),
    ) -> None:
        """Begin the first of some ``.rec`` files in a folder.

        Args:
            paths: of the files.
            identities: how many go into each before the next one begins; the last takes all others.
            image_size: height and width.
            former: files of a former set that contradict the new ones, and are removed.

        Raises:
            DataError: the folder cannot be written to.
        """
        self.paths = paths
        self._firsts = [sum(identities[:number]) for number in range(len(paths))]
        self._image_size, self._former = image_size, former
        self._files = StagedFiles()
        self._identities = 0
        # For each file the offsets of its records, in the order of their keys.
        self._offsets: list[array[int]] = []
        self._begin()

    def write(self, payload: Payload, label: int) -> None:
        """Append an encoded image; labels are 0, 1, 2, … in this order."""
        number = len(self._offsets)
        if number < len(self._firsts) and label == self._firsts[number]:
            self._finish()
            self._begin()
        own = label - self._firsts[len(self._offsets) - 1]
        if own == len(self._starts):
            assert own < FLOAT32_EXACT, "labels are float32 in a record file"
            self._starts.append(len(self._offsets[-1]))
        assert own == len(self._starts) - 1, f"identity {own} is out of order"
        self._append((float(own),), payload)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                self._finish()
                self._publish()
        finally:
            self._files.discard()

    def _begin(self) -> None:
        path = self.paths[len(self._offsets)]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A file that is not yet known would not be removed.
            with undisturbed():
                self._file = self._files.open(path)
        except OSError as error:
            raise DataError(f"{path} cannot be written: {error.strerror}") from None
        # Keys of the first images of the identities in the file, and its size.
        self._starts: list[int] = []
        self._size = 0
        self._offsets.append(array("q"))
        self._append((0.0, 0.0), b"")

    def _append(self, labels: tuple[float, ...], payload: Payload) -> None:
        offsets = self._offsets[-1]
        key = len(offsets)
        offsets.append(self._size)
        # Counted here, since tell() is a system call.
        self._size += self._file.write(encode(labels, key, payload))

    def _finish(self) -> None:
        """Append the identity records of a file."""
        first = len(self._offsets[-1])
        for start, stop in zip(self._starts, [*self._starts[1:], first]):
            self._append((float(start), float(stop)), b"")
        # Replaces the first record, which was written before its keys were known; same size.
        self._file.seek(0)
        self._file.write(encode((float(first), float(len(self._offsets[-1]))), 0, b""))
        self._identities += len(self._starts)

    def _publish(self) -> None:
        """Give the files their names when all are complete.

        A ``.rec`` without the other files is a set, too: a reader that opens it meanwhile sees the
        old set or the new one, never the ``.rec`` of one with the index of the other. Shards
        without ``property`` are none.
        """
        height, width = self._image_size
        indexes = [path.with_suffix(".idx") for path in self.paths]
        description = self.paths[0].with_name("property")
        for path, offsets in zip(indexes, self._offsets):
            lines = (f"{key}\t{offset}\n" for key, offset in enumerate(offsets))
            self._files.open(path).write("".join(lines).encode())
        self._files.open(description).write(f"{self._identities},{height},{width}\n".encode())
        self._files.publish(remove_first=[description, *indexes, *self._former])


_Self = TypeVar("_Self", bound=SetWriter)


class RecordWriter(SetWriter):
    """Writes a set of one file."""

    def __init__(self, path: Path, *, image_size: tuple[int, int]) -> None:
        """Begin ``train.rec`` in a folder, or a ``.rec`` file.

        Raises:
            DataError: the folder cannot be written to.
        """
        path = path if path.suffix == ".rec" else path / "train.rec"
        super().__init__([path], [0], image_size)


def shard_writer(
    folder: Path, identities: Sequence[int], *, image_size: tuple[int, int]
) -> SetWriter:
    """Begin the first shard in a folder; ``identities`` says how many go into each shard.

    Raises:
        ConfigError: the folder holds a set of one file, which would be read instead.
        DataError: the folder cannot be written to.
    """
    if (folder / "train.rec").exists():
        raise ConfigError(
            f"{folder} holds train.rec, which would be read instead of shards; move it away or "
            "choose another folder"
        )
    allow_open_files(len(identities), folder)
    paths = [shard_path(folder, number) for number in range(len(identities))]
    # Those of a former packing into more of them.
    others = [path for path in shards_of(folder) if path not in paths]
    endings = (".rec", ".idx", ".idx.cache", ".labels.cache")
    former = [path.with_suffix(ending) for path in others for ending in endings]
    return SetWriter(paths, identities, image_size, former)
