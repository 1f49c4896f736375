"""Record sets: ``train.rec``, ``train.idx`` and ``property``, the form that faces are published in.

Training draws any image at any time and has to know the identities before it starts. So a set is
opened by its index and its few identity records, without reading the images; what they say is kept
in caches beside the file, so that the next start reads neither.

Sets come from strangers: whatever does not fit together (truncated files, an index of another
version, fewer classes than labels) is a ``DataError`` with file, record and remedy.

Two kinds exist. Identity-grouped: record 0 holds the key range of the identity records, which
follow the images and each hold the key range of the images of one identity. Flat: only images.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Optional, Union

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data.contents import describe_file
from data.image_interface import LabeledRecords, Labels, first_readable
from data.records.index import RecordIndex, cached_array
from data.records.recordio import FLOAT32_EXACT, BrokenRecordError, Payload, RecordFile
from runtime.errors import DataError
from runtime.files import read_lines

# Limits of ``property``, and its first line; InsightFace's programs may add lines to it.
_MAX_SIDE = 4096
_LARGEST_FILE = 1 << 20
_LINE = re.compile(r"(\d{1,18})\s*,\s*(\d{1,18})\s*,\s*(\d{1,18})", re.ASCII)
# Images of a grouped set up to which the label of each is looked up: the disk reads a page for it.
_ALL_LOOKED_UP = 1 << 20

Property = tuple[int, tuple[int, int]]
"""Number of classes, and height and width of the images."""


def read_property(path: Path, most_classes: int = FLOAT32_EXACT) -> Property:
    """Read the number of classes and the image size (height, width).

    Raises:
        DataError: the file does not say them, or more than ``most_classes``.
    """
    lines = read_lines(path, "num_classes,height,width", errors="replace", limit=_LARGEST_FILE)
    first = next(filter(None, map(str.strip, lines)), "")
    found = _LINE.fullmatch(first)
    if found:
        num_classes, height, width = map(int, found.groups())
        if 0 < num_classes <= most_classes and 0 < height <= _MAX_SIDE and 0 < width <= _MAX_SIDE:
            return num_classes, (height, width)
    raise DataError(
        f"{path} begins with {first[:80]!r} instead of num_classes,height,width "
        "(such as 10572,112,112); correct it"
    )


class RecordSet(LabeledRecords):
    """A record file, read by random access.

    Attributes:
        path: the ``.rec`` file.
        num_classes: the number of classes according to ``property``, else to the labels.
        identities: the number of identity records, 0 in a flat set; several may be of one class, if
            the set was made from an unsorted list.
        file: the mapped file.
        index: where its images are.
    """

    path: Path

    def __init__(
        self, path: Union[str, os.PathLike[str]], whole: Optional[Property] = None
    ) -> None:
        """Open a ``.rec`` file, or a folder with ``train.rec``.

        Args:
            path: of the file or folder.
            whole: of the set of which the file is a shard. The classes of a shard are those of its
                identity records; without any, those of the whole set.

        Raises:
            DataError: no such set, or an index, header or property that cannot be right.
        """
        self.path = files_of(Path(path))[0]
        self.file = RecordFile(self.path)
        self.index = RecordIndex(self.path, self.file)
        self.identities = len(self.index.identity_offsets)
        self._mapped: Optional[Labels] = None
        if whole is None:
            self._describe()
        else:
            self.num_classes, self.image_size = self.identities or whole[0], whole[1]
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise ``DataError`` if the file was replaced, removed or changed since it was opened."""
        if not self.file.is_at(self.path):
            raise DataError(
                f"{self.path} was replaced or changed while it was open; start again when it is "
                "complete"
            )

    def __len__(self) -> int:
        return len(self.index)

    @override
    def image(self, index: int) -> tuple[Payload, int]:
        try:
            labels, payload = self.file.read(int(self.index.offsets[index]))
        except BrokenRecordError as error:
            # Of a file that was written anew, no record can be trusted.
            self.check_unchanged()
            raise BrokenRecordError(f"{self.where(index)}: {error}") from None
        if not len(payload):
            raise BrokenRecordError(f"{self.where(index)}: there is no image in it")
        label = labels[0]
        if not 0 <= label < self.num_classes or label != int(label):
            raise self._label_error(label, index)
        return payload, int(label)

    def key(self, index: int) -> int:
        """Return the key of an image in the file, by which other tools find it."""
        return int(self.index.keys[index])

    @override
    def where(self, index: int) -> str:
        return f"{self.path}: record {self.key(index)}"

    def identity_ranges(self) -> NDArray[np.int64]:
        """Return ``[start, stop)`` of each identity's images, int64 ``[identities, 2]``.

        Empty for a flat set. Ranges that cannot be read, or of keys above 2^24, which are rounded
        in the file itself, are empty, and so are all if they overlap: following each of them would
        take time by the square of the file's size.
        """
        ranges = np.zeros((self.identities, 2), np.int64)
        for number, offset in enumerate(self.index.identity_offsets.tolist()):
            with suppress(BrokenRecordError):
                bounds, _ = self.file.read(offset)
                if len(bounds) == 2 and all(0 <= bound <= FLOAT32_EXACT for bound in bounds):
                    ranges[number] = bounds
        ranges = np.searchsorted(self.index.keys, ranges)
        if np.diff(ranges).clip(0).sum() > 2 * len(self):
            ranges[:] = 0
        return ranges

    @override
    def labels_between(self, start: int, stop: int) -> Labels:
        return self.labels()[start:stop]

    @override
    def fingerprint(self) -> str:
        return describe_file(self.path)

    def labels(self) -> Labels:
        """Return the identity of every image, int32 ``[len(self)]``; -1 where it is unreadable.

        Raises:
            DataError: a label is not one of the classes.
        """
        if self._mapped is None:
            labels = self._labels()
            if labels.max() >= self.num_classes:
                wrong = int(np.argmax(labels >= self.num_classes))
                raise self._label_error(labels[wrong], wrong)
            self._mapped = labels
        return self._mapped

    def labeled_classes(self) -> int:
        """Return the number of classes up to the highest label; reads the labels.

        Raises:
            DataError: a label is no class of any set.
        """
        return int(self._labels().max()) + 1

    def _labels(self) -> Labels:
        def is_usable(found: Labels) -> bool:
            return len(found) == len(self) and found.min() >= -1

        cache, sources = self.path.with_suffix(".labels.cache"), files_of(self.path)[:2]
        return cached_array(cache, sources, "<i4", self._build_labels, is_usable)

    def _build_labels(self) -> Labels:
        """Look up the labels of all images of a flat set, and of a grouped one up to a size.

        In a larger grouped set an identity record's images have the label of the first and the last
        of them. They are looked up where these differ, and where keys are too large for exact
        ranges. An unreadable image has the label of its identity record's others.
        """
        labels = np.full(len(self), -1, "<i4")
        ranges = self.identity_ranges()
        ranges = ranges[ranges[:, 0] < ranges[:, 1]]
        firsts, lasts = map(self._look_up_labels, (ranges[:, 0], ranges[:, 1] - 1))
        firsts = np.where(firsts < 0, lasts, firsts)
        lasts = np.where(lasts < 0, firsts, lasts)
        for (start, stop), label in zip(ranges, np.where(firsts == lasts, firsts, -1)):
            labels[start:stop] = label
        missing = (
            np.arange(len(self)) if len(self) <= _ALL_LOOKED_UP else np.flatnonzero(labels < 0)
        )
        found = self._look_up_labels(missing)
        labels[missing] = np.where(found < 0, labels[missing], found)
        return labels

    def _describe(self) -> None:
        """Find the number of classes and the image size."""
        path = self.path.with_name("property")
        if not os.path.lexists(path):
            self.num_classes = FLOAT32_EXACT
            height, width, _ = self.decoded(first_readable(self))[0].shape
            self.image_size = height, width
            self.num_classes = self.labeled_classes()
            return
        self.num_classes, self.image_size = read_property(path)
        held = self.identities
        if held > self.num_classes:
            # In a set from an unsorted list, a class has several identity records.
            held = self.labeled_classes()
        if held > self.num_classes:
            raise DataError(
                f"{path} says {self.num_classes} classes, but {self.path.name} holds {held} "
                "identities; correct its first line (num_classes,height,width)"
            )

    def _look_up_labels(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the labels of many images, int64; -1 where the record is unreadable."""
        labels = np.full(len(indices), -1, np.int64)
        for place, index in enumerate(indices.tolist()):
            with suppress(BrokenRecordError):
                label = self.file.read(int(self.index.offsets[index]))[0][0]
                if not 0 <= label < FLOAT32_EXACT or label != int(label):
                    raise self._label_error(label, index)
                labels[place] = int(label)
        return labels

    def _label_error(self, label: float, index: int) -> DataError:
        return DataError(
            f"{self.where(index)} has label {label:.10g}, but the classes are 0 to "
            f"{self.num_classes - 1}; correct num_classes,height,width in "
            f"{self.path.with_name('property')} or pack the set again"
        )


def files_of(path: Path) -> list[Path]:
    """Return the files of the set at ``path`` (see ``RecordSet``), whether they exist or not."""
    rec = path if path.suffix == ".rec" or os.path.isfile(path) else path / "train.rec"
    return [rec, rec.with_suffix(".idx"), rec.with_name("property")]
