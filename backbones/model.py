"""A backbone with its weights: creation, training, inference, and the checkpoint on disk.

Two graphs share one set of weights. The graph that runs may compute in float16, or be rewritten for
a CPU; the graph that is exported is always the plain float32 one, with the names the InsightFace
world knows, so that any tool can load it on any device. Initial weights depend on the seed and the
tensor's name alone: MXNet seeds every process alike and its stream depends on what ran before, so
it has no say here.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import backbones
from backbones import cpu
from backbones.graph_file import infer_shapes, read_graph
from backbones.parameter_file import read_parameters, write_parameters
from backbones.recompute import Part, Recomputation, cut
from runtime.errors import DataError
from runtime.files import StagedFiles
from runtime.mxnet import mx

FACE_SIZE = (112, 112)
PRELU_SLOPE = 0.25

NDArray = Any
Context = Any
Shape = tuple[int, ...]


class TakenWeights(NamedTuple):
    """What was found in a checkpoint: names of tensors without ``arg:`` and ``aux:``."""

    path: Path
    loaded: list[str]
    missing: list[str]
    """Of this network but not in the file; they keep their initial values."""
    left_over: list[str]
    """In the file but not of this network, such as those of a classifier."""


class Backbone:
    """A network from images to embeddings.

    Call it inside ``mx.autograd.record()`` to train (BatchNorm then uses the batch and updates its
    running statistics), outside to infer.
    """

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
        self._exported = exported
        self._ctx = ctx
        self._block = mx.gluon.SymbolBlock(trained, mx.sym.var("data", dtype="float32"))
        fixed = _fixed_gammas(trained)
        for name, parameter in self.parameters.items():
            parameter.shape = weights[name].shape
            parameter.initialize(mx.init.Zero(), ctx=ctx)
            parameter.set_data(weights[name].astype(parameter.dtype))
            parameter.wd_mult = float(name.endswith("_weight"))
            if name in fixed:
                parameter.grad_req = "null"
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
            key: mx.nd.array(_initial_value(key, shape, seed))
            for key, shape in _shapes(exported, image_size).items()
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
        symbol = read_graph(symbol_path)
        weights = _load_weights(parameter_path, infer_shapes(symbol, image_size, symbol_path))
        return cls(_form_for(ctx, symbol, image_size), symbol, weights, ctx)

    def take_weights(self, prefix: str | Path, epoch: int) -> TakenWeights:
        """Take the weights of another checkpoint over, as far as it has them under our names.

        Args:
            prefix: of the checkpoint, ours or one of InsightFace's; only its parameters are read.
            epoch: the number in their file's name.

        Raises:
            DataError: the file is missing or broken, a tensor has another shape than here, or there
                is none that can be taken.
        """
        _, path = checkpoint_paths(prefix, epoch)
        found = _by_plain_name(read_parameters(path))
        loaded = [name for name in self.parameters if name in found]
        for name in loaded:
            own = self.parameters[name].shape
            if found[name].shape != own:
                raise DataError(
                    f"{path}: {name!r} has shape {found[name].shape}, this network's has {own}; "
                    "choose the --network and --embedding-size that the checkpoint was made with"
                )
        if not loaded:
            raise DataError(
                f"{path} has no tensor of this network (its first is {next(iter(found), None)!r}); "
                "choose the --network that the checkpoint was made with"
            )
        for name in loaded:
            value = mx.nd.array(found[name], dtype=found[name].dtype)
            self.parameters[name].set_data(value.astype(self.parameters[name].dtype))
        missing = [name for name in self.parameters if name not in found]
        left_over = [name for name in found if name not in set(loaded)]
        return TakenWeights(path, loaded, missing, left_over)

    @property
    def parameters(self) -> Any:
        """The ``gluon.ParameterDict``; weight decay applies to convolution and linear weights only.

        Biases, gammas, betas and PReLU slopes have ``wd_mult`` 0. Running statistics and fixed
        gammas have ``grad_req`` "null": a trainer neither reduces nor updates them.
        """
        return self._block.collect_params()

    @property
    def statistic_names(self) -> list[str]:
        """The names of BatchNorm's running means and variances, in a fixed order."""
        names: list[str] = self._exported.list_auxiliary_states()
        return names

    @property
    def statistics(self) -> list[NDArray]:
        """BatchNorm's running means and variances, in a fixed order, to be averaged over ranks."""
        return [self.parameters[name].data(self._ctx) for name in self.statistic_names]

    @property
    def embedding_size(self) -> int:
        """Numbers per embedding."""
        return int(self.parameters["fc1_beta"].shape[0])

    def __call__(self, images: NDArray) -> NDArray:
        """Return features float32 [b, embedding_size] of images [b, 3, h, w].

        Args:
            images: RGB, 0-255, uint8 or float32, on any device.
        """
        images = images.as_in_context(self._ctx).astype("float32", copy=False)
        if self._recomputation is not None and mx.autograd.is_recording():
            return self._recomputation.forward(images)
        return self._block(images)

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

    def hybridize(self) -> None:
        """Plan memory and operators once per shape; worth it when most batches have one shape."""
        self._block.hybridize(static_alloc=True, static_shape=True)

    def export(self, prefix: str | Path, epoch: int = 0) -> None:
        """Write ``<prefix>-symbol.json`` and ``<prefix>-<epoch, four digits>.params``.

        The graph is the plain float32 one whatever trained. The files appear under their names when
        both are complete.

        Raises:
            DataError: they cannot be written.
        """
        auxiliary = set(self._exported.list_auxiliary_states())
        arrays = {
            f"{'aux' if name in auxiliary else 'arg'}:{name}": parameter.data(self._ctx)
            .astype("float32")
            .asnumpy()
            for name, parameter in self.parameters.items()
        }
        symbol_path, parameter_path = checkpoint_paths(prefix, epoch)
        try:
            symbol_path.parent.mkdir(parents=True, exist_ok=True)
            with StagedFiles() as files:
                files.open(symbol_path).write(self._exported.tojson().encode())
                write_parameters(files.open(parameter_path), arrays)
        except OSError as error:
            raise DataError(
                f"{parameter_path} cannot be written: {error.strerror}; what was there before is "
                "unchanged, make room or choose another folder"
            ) from None


def checkpoint_paths(prefix: str | Path, epoch: int) -> tuple[Path, Path]:
    """Return the files of a checkpoint: the graph and the parameters."""
    return Path(f"{prefix}-symbol.json"), Path(f"{prefix}-{epoch:04d}.params")


def _initial_value(name: str, shape: Shape, seed: int) -> npt.NDArray[np.float32]:
    """Return the initial value of a tensor, a pure function of its name, shape and the seed.

    Weights come from N(0, 2 / fan_in) (He et al., arXiv:1502.01852), PReLU slopes start at 0.25,
    BatchNorm starts as the identity.
    """
    if name.endswith("_weight"):
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        deviation = np.float32(np.sqrt(2.0 / np.prod(shape[1:])))
        return generator.standard_normal(shape, dtype=np.float32) * deviation
    if name.endswith("_gamma") and "relu" in name:
        return np.full(shape, PRELU_SLOPE, np.float32)
    if name.endswith(("_gamma", "_moving_var")):
        return np.ones(shape, np.float32)
    assert name.endswith(("_bias", "_beta", "_moving_mean")), name
    return np.zeros(shape, np.float32)


def _shapes(symbol: Any, image_size: tuple[int, int]) -> dict[str, Shape]:
    """Return the shape of every parameter and auxiliary state of a graph."""
    arguments, _, auxiliary = symbol.infer_shape(data=(1, 3, *image_size))
    shapes = dict(zip(symbol.list_arguments(), arguments))
    shapes.update(zip(symbol.list_auxiliary_states(), auxiliary))
    del shapes["data"]
    return shapes


def _form_for(ctx: Context, symbol: Any, image_size: tuple[int, int]) -> Any:
    """Return the graph as it runs on a device: rewritten on a CPU, as it is on a GPU."""
    return cpu.form(symbol, image_size) if ctx.device_type == "cpu" else symbol


def _fixed_gammas(symbol: Any) -> set[str]:
    """Return the names of the gammas that BatchNorm holds at one."""
    return {
        f"{name}_gamma"
        for name, attributes in symbol.attr_dict().items()
        if attributes.get("fix_gamma") == "True"
    }


def _by_plain_name(arrays: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return arrays by their names without MXNet's ``arg:`` and ``aux:``."""
    return {name.split(":", 1)[-1]: array for name, array in arrays.items()}


def _load_weights(path: Path, shapes: dict[str, Shape]) -> dict[str, NDArray]:
    weights = _by_plain_name(read_parameters(path))
    for name, shape in shapes.items():
        if name not in weights:
            raise DataError(f"{path} lacks {name!r}; it belongs to another graph than its symbol")
        if weights[name].shape != shape:
            raise DataError(
                f"{path}: {name!r} has shape {weights[name].shape}, but the graph needs {shape}; "
                "do graph and image size belong to these parameters?"
            )
    return {name: mx.nd.array(weights[name], dtype=weights[name].dtype) for name in shapes}
