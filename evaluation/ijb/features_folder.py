"""The features of all faces, in a folder that a killed command continues.

To embed 469,375 faces takes hours. So features are written in parts, each as a file that appears
when it is complete, and what has a file is not embedded again. A part always has the same faces in
the same batches: the files do not depend on where a command was stopped, nor on how many ranks
share the parts. What the features are of is written beside them, and a folder with those of another
model or other lists is refused.
"""

from __future__ import annotations

import argparse
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Optional

import numpy as np

from evaluation.features import Features
from evaluation.files import map_floats, writing
from evaluation.network import files_of
from runtime.errors import DataError
from runtime.files import StagedFiles, as_data_error, open_kept, sha256, write_atomically

PART = 1024
"""Faces of a part, a minute's work of a processor."""

_DESCRIPTION = "features.json"


def describe(options: argparse.Namespace, faces: Path, count: int) -> dict[str, Any]:
    """Return what features depend on: options, and the list of images and points of the faces.

    Raises:
        DataError: a file of the model cannot be read.
    """
    try:
        checksums = {"model": sha256(*files_of(options.model)), "faces": sha256(faces)}
    except OSError as error:
        raise DataError(
            f"{error.filename} cannot be read: {error.strerror}; give --model PREFIX,EPOCH of a "
            "checkpoint that is there, or an ONNX file"
        ) from None
    return {**checksums, "count": count, "flip": not options.no_flip, "dtype": options.dtype}


class FeaturesFolder:
    """A folder of parts; a context manager, at whose end other processes may claim it."""

    def __init__(self, path: Path, description: dict[str, Any]) -> None:
        """Args: the folder, and what ``describe`` says about its features."""
        self._path, self._description = path, description
        self._lock: Optional[BinaryIO] = None

    def __enter__(self) -> FeaturesFolder:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock:
            self._lock.close()

    def claim(self) -> None:
        """Make the folder, or check that it has these features, alone among the processes.

        Raises:
            DataError: it has other features or files, another process writes into it, or it cannot
                be written.
        """
        path = self._path / _DESCRIPTION
        content = (json.dumps(self._description, indent=1) + "\n").encode()
        with writing(self._path, "--out"):
            self._path.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                if any(not one.name.startswith(".") for one in self._path.iterdir()):
                    raise DataError(
                        f"{self._path} is not empty, and has no {_DESCRIPTION}; choose another "
                        "folder with --out"
                    )
                write_atomically(path, content)
            self._lock = open(path, "r+b", opener=open_kept)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DataError(
                    f"another command writes into {self._path}; wait for its end, or choose "
                    "another folder with --out"
                ) from None
        if self._lock.read() != content:
            raise DataError(
                f"{self._path} has features of another model or list of faces, or with another "
                f"--no-flip or --dtype, or its {_DESCRIPTION} is damaged; choose another folder "
                "with --out"
            )
        for unfinished in self._path.glob(".part-*.part"):
            unfinished.unlink(missing_ok=True)

    def faces(self, part: int) -> range:
        """Return the numbers of the faces of a part."""
        return range(part * PART, min((part + 1) * PART, self._description["count"]))

    def missing(self) -> list[int]:
        """Return the parts that have no file."""
        return [part for part in range(self._parts) if not self._file(part).exists()]

    def write(self, part: int, rows: Features) -> None:
        """Write the features float32 [b, views · D] of a part.

        Raises:
            DataError: the disk is full.
        """
        with writing(self._path, "--out"), StagedFiles() as files:
            np.save(files.open(self._file(part)), rows)

    def read(self) -> Iterator[Features]:
        """Yield the features [views, b, D] of all parts, in order.

        Raises:
            DataError: a part is missing or damaged, or its features are not finite.
        """
        width: Optional[int] = None
        views = 2 if self._description["flip"] else 1
        for part in range(self._parts):
            path = self._file(part)
            with as_data_error(f"{path} cannot be read"):
                rows = map_floats(path)
            shape = (0, 0) if rows is None else rows.shape
            width = width or shape[1]
            is_right = bool(width) and shape == (len(self.faces(part)), width) and not width % views
            if rows is None or not is_right or not np.isfinite(rows).all():
                raise DataError(
                    f"{path} is damaged or has features of another network; delete it and start "
                    "the command again, which embeds its faces again"
                )
            yield rows.reshape(len(rows), views, -1).swapaxes(0, 1)

    @property
    def _parts(self) -> int:
        count: int = self._description["count"]
        return -(-count // PART)

    def _file(self, part: int) -> Path:
        return self._path / f"part-{part:05d}.npy"
