"""A network of an ONNX file as a function of images."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime import environment
from runtime.errors import DataError
from runtime.untrusted.child import one_line
from runtime.untrusted.onnx_model import import_onnx, open_session

# Half of the largest pixel, as a float32: a product with it stays one.
_MIDDLE = np.float32(127.5)
_FLOATS = ("tensor(float)", "tensor(float16)", "tensor(double)")


class OnnxNetwork:
    """A network of an ONNX file on the host: one input, of images, and one output.

    Attributes:
        batch_size: the only number of images that it takes; None for any.
        image_shape: channels, height and width; a side that the file leaves open is no number.
        takes_bytes: True if its input is uint8.
        scales_pixels: True if it gets (x - 127.5) / 127.5 instead of pixels x; False at first.

    Raises:
        ConfigError: ONNX Runtime is not installed.
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
        if outputs[0].type not in _FLOATS:
            raise DataError(
                f"{name} has an output of the type {outputs[0].type}; give a network whose output "
                "is float32 [b, D]"
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
            (output,) = self._session.run(None, {self._input: filled})
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
        return np.asarray(output[: len(images)], np.float32)


def normalizes_pixels(content: bytes) -> bool:
    """True if a network takes pixels as they are, 0 to 255, instead of (x - 127.5) / 127.5.

    InsightFace's programs decide so: a difference, and a product (``ArcFaceONNX`` of its client) or
    a quotient (``onnx_helper.py`` of arcface_torch), are among the first eight nodes, by name.

    Raises:
        ConfigError: the package ``onnx`` is not installed.
    """
    graph = import_onnx().load_from_string(content).graph
    names = [node.name for node in graph.node[:8]]
    return all(
        any(name.startswith(beginnings) for name in names)
        for beginnings in (("Sub", "_minus"), ("Mul", "_mul", "Div"))
    )
