"""A backbone with its weights: created, or loaded from a checkpoint.

On a CPU its graph runs in another form (``backbones.cpu``); what is exported is always the plain
one, with the names the InsightFace world knows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import backbones
from backbones import cpu
from backbones.network import (
    Context,
    NDArray,
    Network,
    Shape,
    checkpoint_paths,
    initial_value,
    shapes,
)
from backbones.recompute import Part, Recomputation, cut
from runtime.errors import DataError
from runtime.mxnet import mx

FACE_SIZE = (112, 112)
OUTPUT = "fc1_output"


class Backbone(Network):
    """A network from images to embeddings; see ``Network`` for what can be done with it."""

    def __init__(
        self,
        trained: Any,
        exported: Any,
        weights: dict[str, NDArray],
        ctx: Context,
        parts: list[Part] | None = None,
    ):
        """Use ``Backbone.create`` or ``Backbone.load``.

        Args:
            trained: the symbol that runs.
            exported: the symbol that is written to disk, with the same parameters.
            weights: an array for every parameter and auxiliary state.
            ctx: the device.
            parts: of ``trained``, if they shall be computed a second time to save memory.
        """
        super().__init__(trained, exported, weights, ctx)
        self._recomputation = Recomputation(parts, self.parameters, ctx) if parts else None

    @classmethod
    def create(
        cls,
        name: str,
        *,
        embedding_size: int = 512,
        dtype: str = "float32",
        dropout: float = 0.0,
        seed: int = 0,
        image_size: tuple[int, int] = FACE_SIZE,
        recompute: bool = False,
        ctx: Context = None,
    ) -> Backbone:
        """Return an untrained network; equal seeds give equal weights on every rank.

        With ``recompute`` its training pass keeps little and computes the rest twice.

        Raises:
            ConfigError: if there is no network of this name.
        """
        ctx = ctx or mx.cpu()
        exported = backbones.build(name, embedding_size=embedding_size)
        trained = backbones.build(name, embedding_size=embedding_size, dtype=dtype, dropout=dropout)
        weights = {
            key: mx.nd.array(initial_value(key, shape, seed))
            for key, shape in shapes(exported, (3, *image_size)).items()
        }
        running = _form_for(ctx, trained, image_size)
        parts = cut(running, image_size) if recompute else None
        return cls(running, exported, weights, ctx, parts)

    @classmethod
    def load(
        cls,
        prefix: str | Path,
        epoch: int = 0,
        *,
        image_size: tuple[int, int] = FACE_SIZE,
        ctx: Context = None,
    ) -> Backbone:
        """Return the network up to ``fc1_output`` of an InsightFace checkpoint, or of one of ours.

        Reads ``<prefix>-symbol.json`` and ``<prefix>-<epoch, four digits>.params``. What the file
        holds beyond the embedding (a classifier) is left aside.

        Raises:
            DataError: if a file is missing or broken, or a tensor is missing or has a wrong shape.
        """
        ctx = ctx or mx.cpu()
        symbol_path, parameter_path = checkpoint_paths(prefix, epoch)
        symbol = _load_symbol(symbol_path)
        weights = _load_weights(parameter_path, shapes(symbol, (3, *image_size)))
        return cls(_form_for(ctx, symbol, image_size), symbol, weights, ctx)

    @property
    def embedding_size(self) -> int:
        """Numbers per embedding."""
        return int(self.parameters["fc1_beta"].shape[0])

    def __call__(self, images: NDArray) -> NDArray:
        """See ``Network``; with recomputation, a forward pass to train keeps less."""
        if self._recomputation is not None and mx.autograd.is_recording():
            return self._recomputation.forward(self._pixels(images))
        return super().__call__(images)

    def backward(self, features: NDArray, gradient: NDArray) -> None:
        """Compute the gradient of every parameter.

        Args:
            features: of the last call inside ``mx.autograd.record()``.
            gradient: that of the features [b, embedding_size].
        """
        if self._recomputation is not None:
            self._recomputation.backward(features, gradient)
        else:
            features.backward(gradient)

    def extract(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Return features [b, embedding_size] of images uint8 [b, 3, h, w], without training."""
        features: npt.NDArray[np.float32] = self(mx.nd.array(images, dtype="uint8")).asnumpy()
        return features


def _form_for(ctx: Context, symbol: Any, image_size: tuple[int, int]) -> Any:
    """Return the graph as it runs on a device: rewritten on a CPU, as it is on a GPU."""
    return cpu.form(symbol, image_size) if ctx.device_type == "cpu" else symbol


def _load_symbol(path: Path) -> Any:
    if not path.is_file():
        raise DataError(
            f"{path} does not exist; give the prefix of a checkpoint, e.g. models/run/model"
        )
    try:
        symbol = mx.sym.load(str(path))
    # A ValueError comes up where MXNet's message quotes a byte that is no UTF-8.
    except (mx.MXNetError, ValueError) as error:
        raise DataError(f"{path} is no MXNet graph; copy the checkpoint again") from error
    internals = symbol.get_internals()
    if OUTPUT not in internals.list_outputs() or "data" not in internals.list_arguments():
        raise DataError(f"{path} has no path from 'data' to {OUTPUT!r}; is it a face network?")
    return internals[OUTPUT]


def _load_weights(path: Path, shapes: dict[str, Shape]) -> dict[str, NDArray]:
    if not path.is_file():
        raise DataError(f"{path} does not exist; name an epoch whose .params file is there")
    try:
        tensors = mx.nd.load(str(path))
    except (mx.MXNetError, ValueError) as error:
        raise DataError(f"{path} is no MXNet parameter file; copy it again") from error
    if not isinstance(tensors, dict):
        raise DataError(f"{path} holds arrays without names; it is no checkpoint")
    weights = {key.partition(":")[2]: value for key, value in tensors.items()}
    for name, shape in shapes.items():
        if name not in weights:
            raise DataError(f"{path} lacks {name!r}; it belongs to another graph than its symbol")
        if weights[name].shape != shape:
            raise DataError(
                f"{path}: {name!r} has shape {weights[name].shape}, but the graph needs {shape}; "
                "do graph and image size belong to these parameters?"
            )
    return {name: weights[name] for name in shapes}
