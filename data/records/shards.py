"""Sets of shards: a folder with ``train-00000.rec``, ``train-00001.rec``, … read as one set.

One file of a billion images would have terabytes, and labels above 2^24 are not exact in a record.
So large sets are packed as many files. Each identity-grouped shard numbers its own identities from
0 on, and the classes of the set are those of all shards, one after another; the labels of flat
shards, which have no identity records, are the classes of the set. ``property`` says how many
classes all shards have together, so that a shard that is missing is found.
"""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Union

import numpy as np

from data.records.joined_set import JoinedSet
from data.records.property_file import Property, read_property
from data.records.record_set import RecordSet, files_of, named_shards
from data.records.recordio import FLOAT32_EXACT
from runtime.errors import ConfigError, DataError

_log = logging.getLogger("data")
_MOST_CLASSES = (1 << 31) - 1
# Of a shard: the .rec, the caches of its index and of its labels. Others: of the process.
_FILES_OF_SHARD, _OTHER_FILES = 3, 256


def open_sets(paths: Sequence[Union[str, Path]]) -> Union[RecordSet, JoinedSet]:
    """Open record files, or folders of one or of many, as one set.

    Raises:
        ConfigError: a file is given twice.
        DataError: no such set, or files that cannot be right.
    """
    shards = {path: shards_of(Path(path)) for path in paths}
    allow_open_files(sum(map(len, shards.values())), paths[0])
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


class ShardedSet(JoinedSet):
    """The shards of a folder as one set; ``path`` is the folder."""

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
        whole = _read_whole(folder / "property", len(shards))
        members = [RecordSet(path, whole) for path in shards]
        # The first may have been replaced while the last was opened.
        for member in members:
            member.check_unchanged()
        flat = next((member for member in members if not member.identities), None)
        if flat is None:
            if sum(member.num_classes for member in members) > whole.num_classes:
                # In a set from an unsorted list, a class has several identity records.
                for member in members:
                    member.num_classes = member.labeled_classes()
            bounds = [0, *accumulate(member.num_classes for member in members)]
            if bounds[-1] != whole.num_classes:
                raise DataError(
                    f"{folder / 'property'} says {whole.num_classes} classes, but the "
                    f"{len(shards)} shards hold {bounds[-1]} identities; a shard is missing or of "
                    "another packing: copy the set again"
                )
            first_classes = bounds[:-1]
        else:
            grouped = next((member for member in members if member.identities), None)
            if grouped is not None:
                raise DataError(
                    f"{grouped.path} has identity records and {flat.path} has none; pack all "
                    "shards of a set alike"
                )
            if whole.num_classes > FLOAT32_EXACT:
                raise DataError(
                    f"{folder / 'property'} says {whole.num_classes} classes, but shards without "
                    f"identity records have at most {FLOAT32_EXACT}; correct its first line "
                    "(num_classes,height,width)"
                )
            first_classes = [0] * len(members)
            self._warn_of_empty_classes(members, whole.num_classes)
        self._join(members, first_classes, whole.num_classes)

    def _warn_of_empty_classes(self, members: Sequence[RecordSet], num_classes: int) -> None:
        """Flat shards do not tell whether the last of them is missing, but their labels may."""
        has_images = np.zeros(num_classes, np.bool_)
        for member in members:
            labels = member.labels()
            has_images[labels[labels >= 0]] = True
        if not has_images.all():
            _log.warning(
                "%s: %d of the %d classes in property have no image, the first is %d; if a shard "
                "behind %s is missing, copy the set again",
                *(self.path, np.sum(~has_images), num_classes, np.argmin(has_images)),
                members[-1].path.name,
            )


def shards_of(path: Path) -> list[Path]:
    """Return the shards in a folder in their order; none if it holds a single file, too."""
    return [] if os.path.isfile(path / "train.rec") else named_shards(path)


def _read_whole(path: Path, shards: int) -> Property:
    if not os.path.isfile(path):
        raise DataError(
            f"{path} is missing, by which {shards} shards are checked to be all; write "
            "num_classes,height,width of the whole set into it"
        )
    return read_property(path, _MOST_CLASSES)


def allow_open_files(shards: int, path: Union[str, Path]) -> None:
    """Raise this process's limit of open files, which is often 1,024, where shards need more.

    Raises:
        DataError: the system allows fewer; names ``path``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = shards * _FILES_OF_SHARD + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        needs = f"{shards} shards need" if shards else "reading it needs"
        fewer = " or pack fewer, larger shards" if shards else ""
        raise DataError(
            f"{path}: {needs} {needed} open files, but this process may open {hard}; raise the "
            f"limit (ulimit -Hn){fewer}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
