"""Class centers of InsightFace: ``<rank>_centers.param``, a file for each rank of its run.

Each is one float32 array without a name, as ``mx.nd.save`` writes it: ceil(classes / ranks) rows,
of which the last file's surplus belongs to no class. Any number of ranks here reads them: a rank
maps the files and copies the rows of its shard. The files come from strangers, so every number in
them is checked.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partial_fc.initial import zeros
from partial_fc.shard import Shard
from runtime.errors import DataError
from runtime.untrusted.parameter_file import read_arrays

NAME = "{}_centers.param"


def read_centers(folder: Path, shard: Shard, embedding_size: int) -> NDArray[np.float32]:
    """Return the centers of a shard, float32 [shard.size, embedding_size].

    Raises:
        DataError: a file is missing or damaged, or the centers are of other classes or another
            embedding.
    """
    paths: list[Path] = []
    while (path := folder / NAME.format(len(paths))).is_file():
        paths.append(path)
    if not paths:
        raise DataError(f"{folder} has no {NAME.format(0)}; give the folder of InsightFace's run")
    arrays = [_read_matrix(path) for path in paths]
    for path, array in zip(paths, arrays):
        if array.shape != (len(arrays[0]), embedding_size):
            raise DataError(
                f"{path} has centers of shape {array.shape}, not {(len(arrays[0]), embedding_size)}"
                f" as the first file and --embedding-size {embedding_size} have it; give the files "
                "of one run"
            )
    rows, classes = len(arrays[0]), shard.num_classes
    if rows != -(-classes // len(paths)):
        raise DataError(
            f"{folder} has {len(paths)} files of {rows} centers, but {classes} classes make "
            f"{-(-classes // len(paths))} in each; give the files of all ranks and the data that "
            "they were trained on"
        )
    centers = zeros((shard.size, embedding_size), np.float32)
    for number, array in enumerate(arrays):
        start, stop = (min(max(end, number * rows), (number + 1) * rows) for end in
                       (shard.start, shard.stop))  # fmt: skip
        own = array[start - number * rows : stop - number * rows]
        centers[start - shard.start : start - shard.start + len(own)] = own
    if not np.isfinite(centers).all():
        raise DataError(f"{folder}: centers are not finite; take those of an earlier checkpoint")
    return centers


def _read_matrix(path: Path) -> NDArray[np.float32]:
    """Return the array of a file, float32 [rows, D], mapped."""
    names, arrays = read_arrays(path)
    if names or len(arrays) != 1 or arrays[0].ndim != 2 or arrays[0].dtype != np.float32:
        raise DataError(
            f"{path} is no file of centers as MXNet saves it, one float32 matrix without a name; "
            "copy it again"
        )
    return arrays[0]
