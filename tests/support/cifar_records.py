"""CIFAR-10 as Grouping-SGD has it, ``train.rec`` and ``test.rec``, of drawn images that can be told
apart.

Records in the order of im2rec's list, shuffled, without ``property``; images are PNGs of 32 x 32.
"""

from __future__ import annotations

from pathlib import Path

import cv2

from data.drawn.patterns import DrawnImages
from data.records.recordio import encode

CLASSES, SIDE = 10, 32


def write(folder: Path, training: int, validation: int, seed: int = 1) -> None:
    """Write both files with so many images."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = SIDE, SIDE, 3
    for name, part, count in (("train", "training", training), ("test", "validation", validation)):
        drawn = DrawnImages(part, num_classes=CLASSES, count=count, shape=shape, seed=seed)
        index, size = [], 0
        with (folder / f"{name}.rec").open("wb") as file:
            for key in range(count):
                image, label = drawn.decoded(key)
                payload = cv2.imencode(".png", image[:, :, ::-1])[1].tobytes()
                index.append(f"{key}\t{size}\n")
                size += file.write(encode((float(label),), key, payload))
        (folder / f"{name}.idx").write_text("".join(index))
