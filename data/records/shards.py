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
from typing import Optional, Union

import numpy as np
from typing_extensions import override

from data.image_interface import LabeledRecords, Labels
from data.records.record_set import RecordSet, files_of, read_property
from data.records.recordio import Payload
from runtime.errors import ConfigError, DataError

_SHARD = re.compile(r"train-\d{5,}\.rec")
_MOST_CLASSES = (1 << 31) - 1
# Files of which more than the number of images is compared: to read blocks of each of thousands
# takes long.
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
        _open_shards(Path(path), shards[path]) if shards[path] else RecordSet(path)
        for path in paths
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

    def __init__(
        self,
        members: Sequence[LabeledRecords],
        path: Optional[Path] = None,
        shared_classes: Optional[int] = None,
    ) -> None:
        """Join open sets.

        Args:
            members: the sets.
            path: of their folder; by default the paths of all.
            shared_classes: the number of classes, if all sets have the same; by default those of a
                set follow on those of the set before it.

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
        self.path = path or " + ".join(str(one.path) for one in members)
        self.image_size = members[0].image_size
        self._members = members
        self._starts = [0, *accumulate(map(len, members))]
        counts = (one.num_classes for one in members)
        # The number of each set's class 0.
        *self._first_classes, self.num_classes = accumulate(counts, initial=0)
        if shared_classes is not None:
            self.num_classes, self._first_classes = shared_classes, [0] * len(members)

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
        step = -(-len(self._members) // _DESCRIBED)
        parts = [str(len(one)) for one in self._members]
        parts += [one.fingerprint() for one in self._members[::step]]
        return f"{len(self._members)} sets, checksum {zlib.crc32(' '.join(parts).encode()):08x}"

    def _locate(self, index: int) -> tuple[int, int]:
        """Return the number of the file that holds an image, and the image's index in it."""
        number = bisect_right(self._starts, index) - 1
        return number, index - self._starts[number]


def _open_shards(folder: Path, shards: Sequence[Path]) -> JoinedSet:
    """Open the shards of a folder as one set.

    Raises:
        DataError: a shard is missing, or cannot be right.
    """
    for number, path in enumerate(shards):
        if path.name != shard_path(folder, number).name:
            raise DataError(
                f"{shard_path(folder, number)} is missing, but {path.name} is there; copy the "
                "set again"
            )
    description = folder / "property"
    whole = read_property(description, _MOST_CLASSES)
    members = [RecordSet(path, whole) for path in shards]
    # The first may have been replaced while the last was opened.
    for member in members:
        member.check_unchanged()
    if not any(member.identities for member in members):
        return JoinedSet(members, folder, shared_classes=whole[0])
    if not all(member.identities for member in members):
        raise DataError(
            f"{folder} has shards with identity records and others without; pack all shards of a "
            "set alike"
        )
    if sum(member.num_classes for member in members) > whole[0]:
        # In a set from an unsorted list, a class has several identity records.
        for member in members:
            member.num_classes = member.labeled_classes()
    joined = JoinedSet(members, folder)
    if joined.num_classes != whole[0]:
        raise DataError(
            f"{description} says {whole[0]} classes, but the {len(members)} shards hold "
            f"{joined.num_classes} identities; a shard is missing or of another packing: copy the "
            "set again"
        )
    return joined


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
