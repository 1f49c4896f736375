"""A trained network as a function of images, whichever file it comes from.

The commands of this room that compute embeddings take a checkpoint for MXNet or an ONNX file, by
the same options. An ONNX file does not say how its pixels are to be scaled: InsightFace's client
decides by the names of the first nodes, and so does this module, so that a network gives the
embeddings that it gives there.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from evaluation.features import FACE_SIZE, FaceNetwork
from evaluation.options import Source
from runtime import environment
from runtime.errors import ConfigError, DataError
from runtime.untrusted.child import one_line
from runtime.untrusted.onnx_model import import_onnx, open_session, read_model

# Half of the largest pixel, as a float32: a product with it stays one.
_MIDDLE = np.float32(127.5)
# The largest fixed batch of a network. It is filled up even for two images, so memory limits it.
_MOST_IMAGES = 4096


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
        self._input = inputs[0].name
        batch, *sides = inputs[0].shape
        if isinstance(batch, int) and batch > _MOST_IMAGES:
            raise DataError(
                f"{name} takes {batch:,} images at a time, more than {_MOST_IMAGES:,}; export it "
                "with an open batch"
            )
        self.batch_size, self.image_shape = batch if isinstance(batch, int) else None, tuple(sides)
        self.takes_bytes = "uint8" in inputs[0].type
        self.scales_pixels = False

    def extract(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the output float32 [b, n] for images uint8 [b, channels, h, w], RGB.

        A network for one batch size gets whole batches, of which the last is filled up.
        """
        count = len(images)
        size = self.batch_size or count
        given: NDArray[Any] = images if self.takes_bytes else images.astype(np.float32)
        if self.scales_pixels:
            given = (given - _MIDDLE) / _MIDDLE
        given = np.pad(given, [(0, -count % size), *[(0, 0)] * 3])
        try:
            outputs = [
                np.asarray(self._session.run(None, {self._input: batch})[0], np.float32)
                for batch in np.split(given, len(given) // size)
            ]
            return np.concatenate(outputs)[:count]
        except Exception as error:
            height, width = images.shape[2:]
            raise DataError(
                f"{self._name} fails on {size} images of {height} x {width} "
                f"({one_line(str(error))}); give a network for RGB images of this size, or a "
                "smaller --batch-size"
            ) from None


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
    given: dict[str, Any] = {"batch_size": options.batch_size, "flip": not options.no_flip}
    if isinstance(options.model, Path):
        if options.dtype != "float32":
            raise ConfigError(
                f"--dtype {options.dtype} is for networks of MXNet, and {options.model} has types "
                "of its own; leave it out, or name a checkpoint"
            )
        return _open_onnx(options.model, size, given)
    # Here, because rooms meet in programs only, and this is a part of several.
    from backbones.model import Backbone

    prefix, epoch = options.model
    image_size = size or FACE_SIZE
    backbone = Backbone.load(prefix, epoch, image_size=image_size, ctx=context, dtype=options.dtype)
    backbone.hybridize()
    return FaceNetwork(backbone.inference(), image_size, name=f"{prefix},{epoch}", **given)


def _open_onnx(path: Path, size: Optional[tuple[int, int]], given: dict[str, Any]) -> FaceNetwork:
    content = read_model(path, size or FACE_SIZE)
    network = OnnxNetwork(content, str(path))
    network.scales_pixels = not (network.takes_bytes or normalizes_pixels(content))
    if size is None:
        # A side that the file leaves open is no number.
        sides = zip(network.image_shape[1:], FACE_SIZE)
        height, width = (side if isinstance(side, int) else other for side, other in sides)
        size = height, width
    # Two, since an output that has a row per batch has the right shape for one image.
    shape = network.extract(np.zeros((2, 3, *size), np.uint8)).shape
    if len(shape) != 2 or shape[0] != 2:
        raise DataError(
            f"{path} gives {list(shape)} for two images; give a network whose output is [b, D], "
            "or export it with an open batch"
        )
    return FaceNetwork(network.extract, size, name=str(path), **given)
