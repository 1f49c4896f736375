from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from parallel.world import LoneWorld
from partial_fc import optimizers
from partial_fc.centers_file import read_centers
from partial_fc.head import PartialFC
from partial_fc.options import HeadOptions
from partial_fc.shard import Shard
from runtime.errors import DataError
from runtime.mxnet import mx

CLASSES, SIZE = 10, 4
CENTERS = np.random.default_rng(0).standard_normal((CLASSES, SIZE)).astype(np.float32)


def save(folder: Path, ranks: int) -> Path:
    """As ``MemoryBank.save`` of the original does it."""
    rows = (CLASSES + ranks - 1) // ranks
    padded = np.concatenate([CENTERS, np.full((rows * ranks - CLASSES, SIZE), 7, np.float32)])
    folder.mkdir(exist_ok=True)
    for rank in range(ranks):
        own = mx.nd.array(padded[rank * rows : (rank + 1) * rows])
        mx.nd.save(fname=str(folder / f"{rank}_centers.param"), data=own)
        mx.nd.save(fname=str(folder / f"{rank}_centers_mom.param"), data=mx.nd.zeros_like(own))
    return folder


@pytest.mark.parametrize("theirs", [1, 3, 4, 10])
def test_any_number_of_ranks_reads_those_of_any_other(theirs: int, tmp_path: Path) -> None:
    folder = save(tmp_path / "run", theirs)
    for ours in (1, 2, 3, 7):
        shards = [Shard(rank, ours, CLASSES) for rank in range(ours)]
        found = [read_centers(folder, shard, SIZE) for shard in shards]
        np.testing.assert_array_equal(np.concatenate(found), CENTERS)
    options, rule = HeadOptions(pretrained_centers=str(folder)), optimizers.build("sgd", 0.9, 5e-4)
    shape, world = (CLASSES, SIZE), LoneWorld()
    head = PartialFC.create(options, shape, world, mx.cpu(), optimizer=rule, seed=1)
    np.testing.assert_array_equal(head.rows.export()["centers"], CENTERS)


def refused(folder: Path, match: str, classes: int = CLASSES, size: int = SIZE) -> None:
    with pytest.raises(DataError, match=match):
        read_centers(folder, Shard(0, 1, classes), size)


def test_what_does_not_fit_is_refused(tmp_path) -> None:
    folder = save(tmp_path / "run", 3)
    refused(tmp_path, "has no 0_centers.param")
    refused(folder, "3 files of 4 centers, but 13 classes make 5", classes=13)
    refused(folder, r"shape \(4, 4\), not \(4, 8\).*--embedding-size 8", size=8)
    (folder / "2_centers.param").unlink()
    refused(folder, "2 files of 4 centers")
    mx.nd.save(str(folder / "1_centers.param"), mx.nd.zeros((3, SIZE)))
    refused(folder, "1_centers.param has centers of shape")
    mx.nd.save(str(folder / "1_centers.param"), mx.nd.full((4, SIZE), np.nan))
    mx.nd.save(str(folder / "2_centers.param"), mx.nd.zeros((4, SIZE)))
    refused(folder, "not finite")


def test_every_damaged_byte_of_the_frame_is_noticed(tmp_path) -> None:
    path = save(tmp_path / "run", 1) / "0_centers.param"
    content = path.read_bytes()
    # Reserved, and the device, may be anything.
    free = {*range(8, 16), *range(52, 60)}
    for place in (*range(64), *range(len(content) - 8, len(content))):
        changed = bytearray(content)
        changed[place] ^= 64
        path.write_bytes(changed)
        if place not in free:
            refused(path.parent, "is no file of centers")
    for length in (0, 1, 40, len(content) - 1):
        path.write_bytes(content[:length])
        refused(path.parent, "is no file of centers|cannot be read")
    mx.nd.save(str(path), {"centers": mx.nd.array(CENTERS)})
    refused(path.parent, "is no file of centers")
