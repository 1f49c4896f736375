"""Several record sets as one, for ``--rec A --rec B``, and sets of shards.

Identities of different sets are different people: the classes of a set are numbered after those of
the sets before it. So are the images: one permutation draws from each set in proportion to its
size, and users of the sets need not know that there are several.

A set of shards is a folder with ``train-00000.rec``, ``train-00001.rec``, …: one file of a billion
images would have terabytes, and labels above 2^24 are not exact in a record. Each identity-grouped
shard numbers its own identities from 0 on; the labels of flat shards, which have no identity
records, are the classes of the set. ``property`` says how many classes all shards have together, so
that a shard that is missing is found.
"""

from __future__ import annotations

import os
import re
import resource
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Union

import numpy as np
from typing_extensions import override

from data.image_interface import LabeledRecords, Labels
from data.records.record_set import RecordSet, files_of, read_property
from data.records.recordio import Payload
from runtime.errors import ConfigError, DataError

_SHARD = re.compile(r"train-\d{5,}\.rec")
_MOST_CLASSES = (1 << 31) - 1
# Files of which more than the size is compared: to read blocks of each of thousands takes long.
_DESCRIBED = 8


def open_sets(paths: Sequence[Union[str, Path]]) -> Union[RecordSet, JoinedSet]:
    """Open record files, or folders of one or of many, as one set.

    Raises:
        ConfigError: a file is given twice.
        DataError: no such set, or files that cannot be right.
    """
    shards = {path: shards_of(Path(path)) for path in paths}
    if any(shards.values()):
        allow_open_files()
    sets = [
        ShardedSet(Path(path), shards[path]) if shards[path] else RecordSet(path) for path in paths
    ]
    if len(sets) == 1:
        return sets[0]
    places = [os.path.realpath(each.path) for each in sets]
    twice = next((place for place in places if places.count(place) > 1), None)
    if twice is not None:
        raise ConfigError(
            f"--rec names {twice} twice, so that each of its people would be two classes; name it "
            "once"
        )
    return JoinedSet(sets)


def shard_path(folder: Path, number: int) -> Path:
    """Return where a shard is, by its number from 0 on."""
    return folder / f"train-{number:05}.rec"


def compared_files(path: Path) -> list[Path]:
    """Return the files of the set at ``path`` that two hosts must have alike, also missing ones.

    Of shards these are no ``.idx``: together they have gigabytes, and say nothing that the
    ``.rec`` does not.
    """
    shards = shards_of(path)
    return [*shards, path / "property"] if shards else files_of(path)


class JoinedSet(LabeledRecords):
    """Record sets one after another; ``path`` names all of them."""

    path: Union[Path, str]

    def __init__(self, members: Sequence[LabeledRecords]) -> None:
        """Join open sets.

        Raises:
            DataError: their images differ in size.
        """
        for other in members[1:]:
            if other.image_size != members[0].image_size:
                first, second = ("{} x {}".format(*one.image_size) for one in (members[0], other))
                raise DataError(
                    f"{members[0].path} has images of {first} pixels, {other.path} of {second}; "
                    "pack them anew at one size, write one size into each property (images are "
                    "resized), or train on one"
                )
        self.path = " + ".join(str(one.path) for one in members)
        self.image_size = members[0].image_size
        self._members = members
        self._starts = [0, *accumulate(map(len, members))]
        counts = (one.num_classes for one in members)
        # The number of each set's class 0.
        *self._first_classes, self.num_classes = accumulate(counts, initial=0)

    def __len__(self) -> int:
        return self._starts[-1]

    @override
    def image(self, index: int) -> tuple[Payload, int]:
        number, index = self._locate(index)
        payload, label = self._members[number].image(index)
        return payload, self._first_classes[number] + label

    @override
    def where(self, index: int) -> str:
        number, index = self._locate(index)
        return self._members[number].where(index)

    @override
    def labels_between(self, start: int, stop: int) -> Labels:
        parts = []
        while start < min(stop, len(self)):
            number, own = self._locate(start)
            labels = self._members[number].labels_between(own, own + stop - start)
            start += len(labels)
            if first := self._first_classes[number]:
                # Unreadable images stay -1.
                labels = np.where(labels < 0, labels, labels + np.int32(first))
            parts.append(labels)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @override
    def fingerprint(self) -> str:
        found = " ".join(member.fingerprint() for member in self._members)
        return f"{len(self._members)} sets, checksum {zlib.crc32(found.encode()):08x}"

    def _locate(self, index: int) -> tuple[int, int]:
        """Return the number of the file that holds an image, and the image's index in it."""
        number = bisect_right(self._starts, index) - 1
        return number, index - self._starts[number]


class ShardedSet(JoinedSet):
    """The shards of a folder as one set; ``path`` is the folder."""

    path: Path

    def __init__(self, folder: Path, shards: Sequence[Path]) -> None:
        """Open all shards.

        Raises:
            DataError: a shard is missing, or cannot be right.
        """
        self.path = folder
        for number, path in enumerate(shards):
            if path.name != shard_path(folder, number).name:
                raise DataError(
                    f"{shard_path(folder, number)} is missing, but {path.name} is there; copy the "
                    "set again"
                )
        description = folder / "property"
        if not os.path.isfile(description):
            raise DataError(
                f"{description} is missing, by which {len(shards)} shards are checked to be all; "
                "write num_classes,height,width of the whole set into it"
            )
        whole = read_property(description, _MOST_CLASSES)
        members = [RecordSet(path, whole) for path in shards]
        # The first may have been replaced while the last was opened.
        for member in members:
            member.check_unchanged()
        kinds = {bool(member.identities): member.path for member in reversed(members)}
        if len(kinds) > 1:
            raise DataError(
                f"{kinds[True]} has identity records and {kinds[False]} has none; pack all shards "
                "of a set alike"
            )
        is_grouped = True in kinds
        if is_grouped and sum(member.num_classes for member in members) > whole[0]:
            # In a set from an unsorted list, a class has several identity records.
            for member in members:
                member.num_classes = member.labeled_classes()
        super().__init__(members)
        self.path, self._shards = folder, members
        if not is_grouped:
            self.num_classes, self._first_classes = whole[0], [0] * len(members)
        elif self.num_classes != whole[0]:
            raise DataError(
                f"{description} says {whole[0]} classes, but the {len(members)} shards hold "
                f"{self.num_classes} identities; a shard is missing or of another packing: copy "
                "the set again"
            )

    @override
    def fingerprint(self) -> str:
        step = -(-len(self._shards) // _DESCRIBED)
        parts = [str(len(shard.file)) for shard in self._shards]
        parts += [shard.fingerprint() for shard in self._shards[::step]]
        return f"{len(self._shards)} files, checksum {zlib.crc32(' '.join(parts).encode()):08x}"


def shards_of(path: Path) -> list[Path]:
    """Return the shards in a folder in their order; none if it holds a single file, too."""
    if not os.path.isdir(path) or os.path.isfile(path / "train.rec"):
        return []
    found = [each for each in path.iterdir() if _SHARD.fullmatch(each.name)]
    return sorted(found, key=lambda each: int(each.stem.partition("-")[2]))


def allow_open_files() -> None:
    """Raise this process's limit of open files, which is often 1,024, as far as it may be."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
