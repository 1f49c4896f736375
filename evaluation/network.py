"""A trained network as a function of images, whichever file it comes from.

The commands of this room that compute embeddings take a checkpoint for MXNet or an ONNX file, by
the same options. An ONNX file does not say how its pixels are to be scaled: InsightFace's client
decides by the names of the first nodes, and so does this module, so that a network gives the
embeddings that it gives there.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from evaluation.features import FACE_SIZE, Extract
from evaluation.options import Source
from runtime import environment
from runtime.errors import ConfigError, DataError
from runtime.untrusted.child import one_line
from runtime.untrusted.onnx_model import import_onnx, open_session, read_model

# Half of the largest pixel, as a float32: a product with it stays one.
_MIDDLE = np.float32(127.5)


class FaceNetwork(NamedTuple):
    """A network, ready to compute.

    Attributes:
        extract: from RGB images uint8 [b, 3, *image_size] to features float32 [b, D].
        image_size: height and width.
        name: the file, for messages and notes.
    """

    extract: Extract
    image_size: tuple[int, int]
    name: str


class OnnxNetwork:
    """A network of an ONNX file on the host: one input, of images, and one output.

    Attributes:
        batch_size: the only number of images that it takes; None for any.
        image_shape: channels, height and width; a side that the file leaves open is no number.
        takes_bytes: True if its input is uint8.
        scales_pixels: True if it gets (x - 127.5) / 127.5 instead of pixels x; False at first.

    Raises:
        DataError: the file is no such network.
    """

    def __init__(self, content: bytes, name: str = "the model") -> None:
        """Args: content of a file that this process has made or checked; its name, for errors."""
        self._name = name
        try:
            self._session = open_session(content, environment.visible_threads())
        except DataError as error:
            raise DataError(f"{name}: {error}; export it again") from None
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1 or len(inputs[0].shape) != 4:
            raise DataError(
                f"{name} has {len(inputs)} inputs and {len(outputs)} outputs; give a network from "
                "images [b, 3, h, w] to embeddings"
            )
        batch, *shape = inputs[0].shape
        self._input = inputs[0].name
        self.takes_bytes = "uint8" in inputs[0].type
        self.scales_pixels = False
        self.batch_size = batch if isinstance(batch, int) else None
        self.image_shape = tuple(shape)

    def extract(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the output float32 [b, n] for images uint8 [b, channels, h, w], RGB.

        A network for one batch size gets whole batches, of which the last is filled up.
        """
        size = self.batch_size or len(images)
        parts = [
            self._run(images[start : start + size], size) for start in range(0, len(images), size)
        ]
        return np.concatenate(parts)

    def _run(self, images: NDArray[np.uint8], size: int) -> NDArray[np.float32]:
        dtype: Any = np.uint8 if self.takes_bytes else np.float32
        filled: NDArray[Any] = np.zeros((size, *images.shape[1:]), dtype)
        filled[: len(images)] = images
        if self.scales_pixels:
            filled = (filled - _MIDDLE) / _MIDDLE
        try:
            (given,) = self._session.run(None, {self._input: filled})
            output = np.asarray(given, np.float32)
        except Exception as error:
            height, width = images.shape[2:]
            raise DataError(
                f"{self._name} fails on {size} images of {height} x {width} "
                f"({one_line(str(error))}); give the size that it was trained with as "
                "--image-size, or a smaller --batch-size"
            ) from None
        if output.shape[:1] != (size,):
            raise DataError(
                f"{self._name} gives {list(output.shape)} for {size} images; export it with an "
                "open batch, output [b, D]"
            )
        return output[: len(images)]


def normalizes_pixels(content: bytes) -> bool:
    """True if a network takes pixels as they are, 0 to 255, instead of (x - 127.5) / 127.5.

    InsightFace's programs decide so: a difference, and a product (``ArcFaceONNX`` of its client) or
    a quotient (``onnx_helper.py`` of arcface_torch), are among the first eight nodes, by name.
    """
    graph = import_onnx().load_from_string(content).graph
    names = [node.name for node in graph.node[:8]]
    return all(
        any(name.startswith(beginnings) for name in names)
        for beginnings in (("Sub", "_minus"), ("Mul", "_mul", "Div"))
    )


def files_of(source: Source) -> list[Path]:
    """Return the files that a network is read from."""
    if isinstance(source, Path):
        return [source]
    # Here, because rooms meet in programs only, and this is a part of several.
    from backbones.network import checkpoint_paths

    return [*checkpoint_paths(*source)]


def device_of(options: argparse.Namespace, world: Any) -> Any:
    """Return MXNet's device of this rank; None for an ONNX file, which runs on the processor."""
    if isinstance(options.model, Path):
        return None
    from runtime import devices

    return devices.choose(world, options.dtype)


def check_same(world: Any, seen: Any, name: str, what: str) -> None:
    """Refuse ranks that see other files than rank 0; ``name`` is that of the broadcast."""
    if world.broadcast_object(seen, name) != seen:
        raise DataError(
            f"rank {world.rank} sees other {what} than rank 0; all ranks have to see the same "
            "files under the same paths"
        )


def open_network(options: argparse.Namespace, context: Optional[object] = None) -> FaceNetwork:
    """Return the network that the options of ``add_network`` name.

    Args:
        options: of the command line.
        context: what ``device_of`` returns.

    Raises:
        ConfigError: options contradict the file or each other.
        DataError: a file is missing or broken, or no network for images of faces.
    """
    size = tuple(options.image_size) if options.image_size else None
    if isinstance(options.model, Path):
        if options.dtype != "float32":
            raise ConfigError(
                f"--dtype {options.dtype} is for networks of MXNet, and {options.model} has types "
                "of its own; leave it out, or name a checkpoint"
            )
        return _open_onnx(options.model, size)
    # Here, because rooms meet in programs only, and this is a part of several.
    from backbones.model import Backbone

    prefix, epoch = options.model
    image_size = size or FACE_SIZE
    backbone = Backbone.load(prefix, epoch, image_size=image_size, ctx=context, dtype=options.dtype)
    backbone.hybridize()
    return FaceNetwork(backbone.inference(), image_size, f"{prefix},{epoch}")


def _open_onnx(path: Path, size: Optional[tuple[int, int]]) -> FaceNetwork:
    wanted = size or FACE_SIZE
    content = read_model(path, wanted)
    network = OnnxNetwork(content, str(path))
    network.scales_pixels = not (network.takes_bytes or normalizes_pixels(content))
    channels, *stated = network.image_shape
    if channels != 3:
        raise DataError(
            f"{path} takes images {list(network.image_shape)}; give a network that takes RGB "
            "images [b, 3, height, width]"
        )
    # A side that the file leaves open is no number.
    known = [side if isinstance(side, int) else wanted[i] for i, side in enumerate(stated)]
    image_size = known[0], known[1]
    if size and size != image_size:
        raise ConfigError(
            f"--image-size {size[0]} {size[1]} contradicts {path}, which takes images of "
            f"{image_size[0]} x {image_size[1]}; leave it out"
        )
    # Two, since an output that has a row per batch has the right shape for one image.
    shape = network.extract(np.zeros((2, 3, *image_size), np.uint8)).shape
    if len(shape) != 2:
        raise DataError(
            f"{path} gives {list(shape)} for two images; give a network whose output is [b, D]"
        )
    return FaceNetwork(network.extract, image_size, str(path))
