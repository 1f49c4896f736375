"""What the tests of several commands use: a small network, images of noise, refusals."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from backbones.model import Backbone
from backbones.options import BackboneOptions
from evaluation.embed import write_index
from runtime.errors import ConfigError, DataError
from tests.support.sets import assert_refused


def export_network(prefix: Path, side: int = 112, *, epoch: int = 0, seed: int = 0) -> Path:
    """Write the checkpoint of a network for images [3, side, side]; return its prefix."""
    options = BackboneOptions(network="tiny", embedding_size=8)
    Backbone.create(options, image_size=(side, side), seed=seed).export(prefix, epoch)
    return prefix


def noise(number: int, side: int) -> np.ndarray:
    """Return a random image, RGB [side, side, 3]."""
    return np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)


def png(rgb: np.ndarray) -> bytes:
    return cv2.imencode(".png", rgb[..., ::-1])[1].tobytes()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def write_embeddings(name: Path | str, rows: Any, *images: tuple[str, str]) -> Path:
    """Write NAME.npy, and NAME.tsv if the images have names and labels; return the first."""
    np.save(f"{name}.npy", rows)
    if images:
        with open(f"{name}.tsv", "wb") as file:
            write_index(file, images)
    return Path(f"{name}.npy")


def check_refusal(main: Callable[[list[str]], Any], words: list[str], message: str) -> None:
    assert_refused(message, main, words, kind=(ConfigError, DataError))
