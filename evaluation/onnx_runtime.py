"""The imports of ``onnx`` and ``onnxruntime``, which only commands about ONNX files need.

Neither is imported before a function here is called, so that training does without them; and
protobuf, which ``onnx`` imports, gets the environment that lets it live beside MXNet.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from runtime import environment
from runtime.errors import ConfigError, DataError

Pixels = Union[NDArray[np.uint8], NDArray[np.float32]]

# ONNX Runtime's number for errors; its warnings are about how it optimizes.
_ERRORS = 3


def import_onnx() -> Any:
    """Return the package ``onnx``.

    Raises:
        ConfigError: it is not installed.
    """
    environment.prepare()
    try:
        import onnx
    except ImportError as error:
        raise _missing("onnx", error) from None
    return onnx


def import_onnxruntime() -> Any:
    """Return the package ``onnxruntime``.

    Raises:
        ConfigError: it is not installed.
    """
    environment.prepare()
    try:
        import onnxruntime
    except ImportError as error:
        raise _missing("onnxruntime", error) from None
    return onnxruntime


def _missing(package: str, error: ImportError) -> ConfigError:
    return ConfigError(
        f"the package {package} cannot be imported ({error}); 'make env' installs it"
    )


class OnnxNetwork:
    """A network of an ONNX file on the host: one input, of images, and one output.

    Attributes:
        batch_size: the only number of images that it takes; None for any.
        image_shape: channels, height and width.

    Raises:
        ConfigError: ONNX Runtime is not installed.
        DataError: the file is no such network.
    """

    def __init__(self, model: Union[bytes, Path]) -> None:
        runtime = import_onnxruntime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = environment.visible_threads()
        options.log_severity_level = _ERRORS
        name = "the model" if isinstance(model, bytes) else str(model)
        source = model if isinstance(model, bytes) else str(model)
        try:
            self._session = runtime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"]
            )
        # Its exceptions have no common class but this one.
        except Exception as error:
            raise DataError(
                f"{name} is refused by ONNX Runtime ({_first_line(error)}); export it again"
            ) from None
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1 or len(inputs[0].shape) != 4:
            raise DataError(
                f"{name} has {len(inputs)} inputs and {len(outputs)} outputs; give a network from "
                "images [b, 3, h, w] to embeddings"
            )
        batch, *shape = inputs[0].shape
        self._input = inputs[0].name
        self._dtype = np.uint8 if "uint8" in inputs[0].type else np.float32
        self.batch_size = batch if isinstance(batch, int) else None
        self.image_shape = tuple(shape)

    def extract(self, images: Pixels) -> NDArray[np.float32]:
        """Return the output float32 [b, n] for images [b, channels, h, w], RGB.

        The network gets the pixels as they are, of its own type. One for a single batch size gets
        whole batches, of which the last is filled up.
        """
        size = self.batch_size or len(images)
        parts = [
            self._run(images[start : start + size], size) for start in range(0, len(images), size)
        ]
        return np.concatenate(parts)

    def _run(self, images: Pixels, size: int) -> NDArray[np.float32]:
        filled = np.zeros((size, *images.shape[1:]), self._dtype)
        filled[: len(images)] = images
        (output,) = self._session.run(None, {self._input: filled})
        return np.asarray(output[: len(images)], np.float32)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0].strip()[:300] if lines else type(error).__name__
