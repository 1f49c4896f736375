"""Valid files of the formats that several campaigns damage or replace."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from data.records.writer import RecordWriter
from evaluation.ijb.features_folder import FeaturesFolder
from tests.support.ijb_set import Sizes, write_set

SIZES = Sizes(faces=10, templates=6, people=4, pairs=12)
DESCRIPTION = {"model": "0a", "faces": "1b", "count": 5, "flip": True, "dtype": "float32"}


def image(number: int = 0, suffix: str = ".png", side: int = 8) -> bytes:
    """Return an image of noise; those of more than one channel and of floats, too."""
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
    if suffix == ".pbm":
        pixels = np.where(pixels[..., 0] > 128, 255, 0).astype(np.uint8)
    if suffix == ".hdr":
        return bytes(cv2.imencode(suffix, (pixels / 255).astype(np.float32))[1])
    return bytes(cv2.imencode(suffix, pixels)[1])


def write_records(folder: Path) -> None:
    """Write a set of three identities."""
    with RecordWriter(folder, image_size=(8, 8)) as writer:
        for label in range(3):
            for number in range(3):
                writer.write(image(3 * label + number, (".png", ".jpg")[number % 2]), label)


def write_ijb(folder: Path) -> None:
    """Write the lists of a small set."""
    write_set(folder / "IJBC", SIZES)


def use_features(folder: Path) -> None:
    """Go on with a folder of features: write what is missing, and read all."""
    with FeaturesFolder(folder, DESCRIPTION) as features:
        features.claim()
        if features.missing():
            features.write(0, np.ones((5, 6), np.float32))
        for rows in features.read():
            assert rows.shape[:2] == (2, 5) and np.isfinite(rows).all()
