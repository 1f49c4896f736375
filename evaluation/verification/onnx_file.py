"""A network of an ONNX file as what ``embed_pairs`` takes.

Files differ in the pixels that they want, and none says so. InsightFace's client decides by the
first eight nodes: a subtraction and a multiplication among them mean that the graph normalizes
pixels from 0 to 255 itself, as those that ``evaluation.export`` writes do; the others, such as
arcface_torch's, get (x - 127.5) / 127.5. Verification decides in the same way, because an accuracy
with the wrong scale is not zero but a few percent too low, and so looks like the network's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import numpy as np

from evaluation.folds import Features
from evaluation.onnx_runtime import OnnxNetwork, import_onnx
from evaluation.verification import FACE_SIZE, Extract, Images
from runtime.errors import ConfigError, DataError

_FIRST_NODES = 8
_MIDDLE = 127.5
# Operators, and what InsightFace's client looks for at the beginning of names.
_SUBTRACTIONS, _PRODUCTS = ("Sub", "_minus"), ("Mul", "_mul")


def open_onnx(
    path: Path, image_size: Optional[tuple[int, int]]
) -> tuple[Extract, tuple[int, int]]:
    """Return the network of a file, and the height and width that it takes.

    Args:
        path: of the file.
        image_size: height and width if the user has chosen them; for a network of any size 112.

    Raises:
        ConfigError: the network takes another size, or ONNX Runtime is not installed.
        DataError: the file is no network from RGB images to embeddings.
    """
    network = OnnxNetwork(path)
    channels, *sides = network.image_shape
    if isinstance(channels, int) and channels != 3:
        raise DataError(f"{path} takes images of {channels} channels; give a network for RGB faces")
    own = (sides[0], sides[1]) if all(isinstance(side, int) for side in sides) else None
    if own is not None and image_size not in (None, own):
        raise ConfigError(
            f"--image-size does not fit {path}, which takes images of {own[0]} x {own[1]}; leave "
            "it out"
        )
    is_scaled = takes_pixels(path)

    def extract(images: Images) -> Features:
        scaled = (images.astype(np.float32) - _MIDDLE) / np.float32(_MIDDLE)
        try:
            features = network.extract(images if is_scaled else scaled)
        # ONNX Runtime's exceptions have no common class but this one.
        except Exception as error:
            reason = str(error).partition("\n")[0][:200]
            raise DataError(
                f"{path} does not take RGB images of {images.shape[2]} x {images.shape[3]} "
                f"({reason}); give --image-size or another network"
            ) from None
        if features.ndim != 2:
            raise DataError(
                f"{path} gives {features.ndim - 1} dimensions for an image instead of an "
                "embedding; give a network whose output is [b, D]"
            )
        return features

    return extract, own or image_size or FACE_SIZE


def takes_pixels(path: Path) -> bool:
    """Whether the network of a file takes pixels from 0 to 255, and so normalizes them itself."""
    graph = import_onnx().load(str(path), load_external_data=False).graph
    words = [(node.op_type, node.name) for node in graph.node[:_FIRST_NODES]]
    found = [
        any(operator == kinds[0] or name.startswith(kinds) for operator, name in words)
        for kinds in (_SUBTRACTIONS, _PRODUCTS)
    ]
    return all(found)
