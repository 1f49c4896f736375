"""A network with its weights: training, inference, and its files on disk.

Two graphs share one set of weights. The graph that runs may compute in float16, or be rewritten for
a CPU; the graph that is exported is always the plain float32 one, which any tool can load on any
device. Initial weights depend on the seed and the tensor's name alone, not on MXNet's generator:
MXNet seeds every process alike, and its numbers depend on what the process drew before.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Union

import numpy as np
import numpy.typing as npt
from typing_extensions import Self, override

from backbones.graph import frozen
from backbones.graph.nodes import Shape, from_json, infer, to_json
from backbones.graph.onednn import prelu
from backbones.graph.passes import TrainingPass
from backbones.graph.synchronized import SynchronizedPass
from backbones.inference import HostInference, Infer
from backbones.layers import Symbol
from backbones.options import NetworkOptions
from runtime import devices
from runtime.devices import Communicator
from runtime.environment import usable_dtype
from runtime.errors import ConfigError
from runtime.files import StagedFiles, as_data_error
from runtime.mxnet import mx
from runtime.state import OWN, REPLICATED, Saved, State, Stateful, Stored
from runtime.untrusted.parameter_file import write_parameters

NDArray = Any
Context = Any
WORKSPACE = 256
"""Most memory of a convolution's algorithm on a GPU, in MB (2^20 bytes)."""


class Network(Stateful):
    """Weights, and the graphs that use them.

    Call it inside ``mx.autograd.record()`` to train (BatchNorm then uses the batch and updates its
    running statistics), outside to infer.

    Attributes:
        context: the device where it computes.
        dtype: of maps and products on a CPU, float32 or bfloat16.
        graph: what is exported: plain, float32, of the same parameters.
    """

    def __init__(
        self,
        trained: Any,
        exported: Any,
        weights: dict[str, NDArray],
        ctx: Context,
        fixed: Collection[str] = (),
        dtype: str = "float32",
    ) -> None:
        """Use ``create`` or ``load`` of a derived class.

        Args:
            trained: the symbol that runs.
            exported: the symbol that is written to disk, with the same parameters.
            weights: all parameters and auxiliary states.
            ctx: the device.
            fixed: names of parameters that are not trained.
            dtype: of maps and products of ``inference`` on a CPU, float32 or bfloat16.
        """
        self.context, self.dtype, self.graph = ctx, dtype, exported
        self._trained = trained
        self._statistic_names: list[str] = exported.list_auxiliary_states()
        self._block = mx.gluon.SymbolBlock(trained, mx.sym.var("data", dtype="float32"))
        self._training_pass = TrainingPass(self._block)
        self._parameters = mx.gluon.ParameterDict()
        # BatchNorm holds these gammas at one.
        ones = {
            f"{name}_gamma"
            for name, attributes in trained.attr_dict().items()
            if attributes.get("fix_gamma") == "True"
        }
        longer = _longer_statistics(trained, weights, self._statistic_names)
        for name, own in self.own_parameters.items():
            own.shape = longer.get(name, weights[name].shape)
            own.initialize(mx.init.Zero(), ctx=ctx)
            parameter = _first_of(own, weights[name].shape, ctx) if name in longer else own
            self._parameters.update({name: parameter})
            parameter.set_data(weights[name].astype(parameter.dtype))
            parameter.wd_mult = float(name.endswith("_weight"))
            if name in ones or name in fixed:
                parameter.grad_req = "null"

    @classmethod
    def assemble(
        cls,
        options: NetworkOptions,
        name: str,
        build: Callable[..., Symbol],
        image_shape: Shape,
        seed: int,
        ctx: Context,
    ) -> Self:
        """Return a network with initial weights, as it is trained on a device.

        ``name`` is the option that has chosen it; ``build`` returns the graph in the type
        ``dtype``, by default float32.

        Raises:
            ConfigError: nothing fits ``--freeze``, or the images are too small.
        """
        exported = build()
        try:
            weights = initial_weights(exported, image_shape, seed)
        except mx.MXNetError:
            raise ConfigError(
                f"{name} cannot take images of {' x '.join(map(str, image_shape))} (channels, "
                "height, width), which are too small; choose larger images or another network"
            ) from None
        dtype = usable_dtype("--dtype", options.dtype)
        # The float32 graph is rewritten for bfloat16.
        trained = build(dtype=dtype) if dtype == "float16" else exported
        fixed = frozen.find(options.freeze, exported)
        trained = frozen.keep_statistics(trained, fixed) if fixed else trained
        trained = for_device(trained, ctx, image_shape, weights, dtype)
        return cls(trained, exported, weights, ctx, fixed, dtype)

    @property
    def parameters(self) -> Any:
        """The ``gluon.ParameterDict``; weight decay applies to convolution and linear weights only.

        Biases, gammas, betas and PReLU slopes have ``wd_mult`` 0. Running statistics, fixed gammas
        and frozen parameters have ``grad_req`` "null": a trainer neither reduces nor updates them.
        """
        return self._parameters

    @property
    def own_parameters(self) -> Any:
        """Those of the graph that runs, for what runs it in another way.

        Some of its running statistics are longer, ``parameters`` has the first of their numbers.
        """
        return self._block.collect_params()

    @property
    def statistics(self) -> list[NDArray]:
        """BatchNorm's running means and variances, in a fixed order, to be averaged over ranks."""
        return [self.parameters[name].data(self.context) for name in self._statistic_names]

    def __call__(self, images: NDArray) -> NDArray:
        """Return the output, float32 [b, n], for images [b, channels, h, w] on any device.

        Images are RGB, 0-255, uint8 or float32.
        """
        run = self._training_pass.forward if mx.autograd.is_recording() else self._block
        return run(images.as_in_context(self.context).astype("float32", copy=False))

    def backward(self, outputs: NDArray, gradient: NDArray) -> None:
        """Compute the gradient of every parameter from that of the outputs [b, n].

        The outputs are those of the last call inside ``mx.autograd.record()``.
        """
        self._training_pass.backward(outputs, gradient)

    def inference(self) -> Infer:
        """Return what computes outputs with the weights of this moment, without training.

        Verification and validation take this, as it is faster on a CPU than the network itself.
        The numbers differ by rounding.
        """
        if not (devices.is_host(self.context) and mx.runtime.Features().is_enabled("MKLDNN")):
            return self.extract
        weights = {name: value.data().asnumpy() for name, value in self.parameters.items()}
        return HostInference(self.graph, weights, self.dtype)

    def extract(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Return the output [b, n] of images [b, channels, h, w] by the graph that trains."""
        outputs: npt.NDArray[np.float32] = self(mx.nd.array(images, dtype="uint8")).asnumpy()
        return outputs

    def hybridize(self) -> None:
        """Plan memory and operators once per shape; worth it when most batches have one shape."""
        self._block.hybridize(static_alloc=True, static_shape=True)

    def synchronize(self, ranks: Communicator) -> None:
        """Have BatchNorm use the images of all ranks in training, as ``sync_bn`` says.

        All ranks train together from then on, with equally many images.

        Raises:
            ConfigError: there is no BatchNorm.
        """
        if not self._statistic_names:
            raise ConfigError(
                "--sync-bn needs BatchNorm, which this network does not have; leave it out"
            )
        assert type(self._training_pass) is TrainingPass, "check() lets no other pass through"
        self._training_pass = SynchronizedPass(
            self._trained, self.own_parameters, ranks, self.context
        )

    @override
    def export_state(self, update: int) -> State:
        arrays = {}
        for name, parameter in self.parameters.items():
            # Running statistics differ between ranks, but with sync_bn.
            kind = OWN if name in self._statistic_names else REPLICATED
            arrays[name] = Stored(kind, parameter.data().asnumpy())
        return State(arrays)

    @override
    def load_state(self, saved: Saved) -> None:
        for name, parameter in self.parameters.items():
            read = saved.own if name in self._statistic_names else saved.replicated
            parameter.data()[:] = read(name, parameter.shape)

    def export(self, prefix: Union[str, Path], epoch: int = 0) -> None:
        """Write ``<prefix>-symbol.json`` and ``<prefix>-<epoch, four digits>.params``.

        The graph is the plain float32 one whatever trained. The files appear under their names when
        both are complete. Their folder has to exist: a run's that was moved is not made again.

        Raises:
            DataError: the files cannot be written.
        """
        arrays = {}
        for name, parameter in self.parameters.items():
            kind = "aux" if name in self._statistic_names else "arg"
            arrays[f"{kind}:{name}"] = parameter.data(self.context).astype("float32").asnumpy()
        symbol_path, parameter_path = checkpoint_paths(prefix, epoch)
        remedy = "earlier files are unchanged, make room or choose another folder"
        with as_data_error(f"{parameter_path} cannot be written", remedy), StagedFiles() as files:
            files.open(symbol_path).write(self.graph.tojson().encode())
            write_parameters(files.open(parameter_path), arrays)


def _longer_statistics(
    symbol: Any, weights: dict[str, NDArray], names: Collection[str]
) -> dict[str, Shape]:
    """Return the shapes of statistics of which a graph has more numbers than there are weights."""
    known = symbol.attr_dict()
    texts = {name: re.findall(r"\d+", known.get(name, {}).get("__shape__", "")) for name in names}
    found = {name: tuple(map(int, text)) for name, text in texts.items()}
    # A shape that a graph of Gluon's does not know yet is (0,).
    return {name: shape for name, shape in found.items() if shape > weights[name].shape}


def _first_of(parameter: Any, shape: Shape, ctx: Context) -> Any:
    """Return a parameter of the first numbers of another one [C], in the same memory."""
    first = mx.gluon.Parameter(parameter.name, grad_req="null", shape=shape, dtype=parameter.dtype)
    first.initialize(mx.init.Zero(), ctx=ctx)
    first._data = [parameter.data(ctx)[: shape[0]]]
    return first


def for_device(
    symbol: Symbol, ctx: Context, image_shape: Shape, weights: dict[str, NDArray], dtype: str
) -> Symbol:
    """Return a graph with the same parameters that computes faster, or in less memory, there.

    On a GPU cuDNN tries several algorithms for each convolution, some of which trade memory for
    time. All convolutions share one buffer, which grows to the largest of these: 1 GB by default,
    which a million class centers would need more, and ``WORKSPACE`` in InsightFace's networks.
    That can cost time in float32, where cuDNN's transforms of large maps need more; float16
    products on tensor cores need little. MXNet obeys the limit if ``MXNET_CUDNN_AUTOTUNE_DEFAULT``
    is 2 (see ``runtime.environment``); with 1 a user lifts it.

    cuDNN's dropout draws from a state of its own, which a seed does not set once it is in use.
    MXNet's kernel draws from the generator that ``mx.random.seed`` sets, as on a CPU.
    """
    if devices.is_host(ctx):
        return prelu.rewrite(symbol, image_shape, weights, dtype)
    graph = to_json(symbol)
    for node in graph["nodes"]:
        if node["op"] == "Convolution":
            node["attrs"]["workspace"] = str(WORKSPACE)
        elif node["op"] == "Dropout":
            node["attrs"]["cudnn_off"] = "True"
    return from_json(graph)


def checkpoint_paths(prefix: Union[str, Path], epoch: int) -> tuple[Path, Path]:
    """Return the files of a checkpoint: the graph and the parameters."""
    return Path(f"{prefix}-symbol.json"), Path(f"{prefix}-{epoch:04d}.params")


def initial_weights(symbol: Any, image_shape: Shape, seed: int) -> dict[str, NDArray]:
    """Return the initial value of every parameter and auxiliary state of a graph, by name.

    The graph's input ``data`` is a batch of images of channels, height and width ``image_shape``.

    Raises:
        MXNetError: the graph cannot take such images.
    """
    arguments, _, auxiliary = infer(symbol, (1, *image_shape))
    names = symbol.list_arguments() + symbol.list_auxiliary_states()
    return {
        name: mx.nd.array(_initial_value(name, shape, seed))
        for name, shape in zip(names, arguments + auxiliary)
        if name != "data"
    }


def _initial_value(name: str, shape: Shape, seed: int) -> npt.NDArray[np.float32]:
    """Return N(0, 2 / fan_in) for weights (He et al., arXiv:1502.01852), 0.25 for PReLU slopes.

    BatchNorm starts as the identity.
    """
    if name.endswith("_weight"):
        generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
        deviation = np.float32(np.sqrt(2.0 / np.prod(shape[1:])))
        return generator.standard_normal(shape, dtype=np.float32) * deviation
    if name.endswith("_gamma") and "relu" in name:
        return np.full(shape, 0.25, np.float32)
    if name.endswith(("_gamma", "_moving_var", "_running_var")):
        return np.ones(shape, np.float32)
    assert name.endswith(("_bias", "_beta", "_moving_mean", "_running_mean")), name
    return np.zeros(shape, np.float32)
