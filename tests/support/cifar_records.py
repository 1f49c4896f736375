"""CIFAR-10 as Grouping-SGD has it: im2rec's ``train.rec`` and ``test.rec``, of drawn images."""

from __future__ import annotations

from pathlib import Path

import cv2

from data.images.image_set import DrawnImages
from tests.support.foreign_records import im2rec, index_of


def write(folder: Path, training: int, validation: int, seed: int = 1) -> None:
    """Write both files with so many images."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, part, count in (("train", "training", training), ("test", "validation", validation)):
        drawn = DrawnImages(part, num_classes=10, count=count, shape=(32, 32, 3), seed=seed)
        images, labels = zip(*map(drawn.decoded, range(count)))
        encoded = [cv2.imencode(".png", image[:, :, ::-1])[1].tobytes() for image in images]
        records = im2rec(labels, encoded, range(count))
        (folder / f"{name}.rec").write_bytes(b"".join(record for _, record in records))
        (folder / f"{name}.idx").write_text(index_of(records))
