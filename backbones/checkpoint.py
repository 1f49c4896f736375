"""A checkpoint's graph and weights as data: for programs that write it in another format.

``backbones.model.Backbone.load`` makes a network of a checkpoint that computes embeddings. Here are
the plain graph and the arrays of the file, of a network for faces or of a classifier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from backbones import layers
from backbones.graph.nodes import Shape, first_shapes, from_json, to_json
from backbones.graph.operators import attributes
from backbones.graph.symbol_file import LOGITS_NODE, OUTPUT_NODE, infer_shapes, read_graph
from backbones.network import Network, checkpoint_paths
from runtime.errors import DataError
from runtime.mxnet import mx
from runtime.untrusted.parameter_file import read_parameters

FACE_SIZE = (112, 112)
_CHANNELS = 3
# The last of an iResNet.
_MAPS = 512, 7


class Checkpoint(NamedTuple):
    """A network, from ``data`` to its one output.

    Attributes:
        symbol: the graph.
        weights: the values of all parameters and auxiliary states, by name.
        image_shape: channels, height and width.
    """

    symbol: Any
    weights: Mapping[str, NDArray[Any]]
    image_shape: Shape

    @property
    def output(self) -> str:
        """The name of the output: ``fc1_output``, or a classifier's ``output_output``."""
        (name,) = self.symbol.list_outputs()
        return str(name)

    @property
    def graph(self) -> dict[str, Any]:
        """The graph as JSON, see ``backbones.graph.nodes``."""
        return to_json(self.symbol)

    def attributes(self) -> list[dict[str, str]]:
        """Return the attributes of each node."""
        return [attributes(node) for node in self.graph["nodes"]]

    def shapes(self) -> dict[str, Shape]:
        """Return the shapes by node, see ``first_shapes``; -1 is a size that the batch changes."""
        one, two = (first_shapes(self.symbol, (batch, *self.image_shape)) for batch in (1, 2))
        return {
            name: tuple(size if size == other else -1 for size, other in zip(one[name], two[name]))
            for name in one
        }

    def parameter_count(self) -> int:
        """Return the number of trained parameters; a fixed gamma counts, as is usual."""
        statistics = set(self.symbol.list_auxiliary_states())
        return sum(array.size for name, array in self.weights.items() if name not in statistics)

    def network(self) -> Network:
        """Return the network on the host, with the plain graph."""
        weights = {
            name: mx.nd.array(array, dtype="float32") for name, array in self.weights.items()
        }
        return Network(self.symbol, self.symbol, weights, mx.cpu())


def read_checkpoint(
    prefix: Union[str, Path], epoch: int, image_size: Optional[tuple[int, int]] = None
) -> Checkpoint:
    """Read ``<prefix>-symbol.json`` and ``<prefix>-<epoch, four digits>.params``.

    The image size is height and width.

    Raises:
        DataError: a file is missing or broken, or they do not belong together.
    """
    symbol_path, parameter_path = checkpoint_paths(prefix, epoch)
    # LeNet has a layer with the name of an embedding, and no network for faces one called "output".
    symbol = read_graph(symbol_path, (LOGITS_NODE, OUTPUT_NODE))
    size, channels = image_size or FACE_SIZE, _channels(symbol, parameter_path)
    shapes = infer_shapes(symbol, size, symbol_path, channels)
    return Checkpoint(symbol, read_weights(parameter_path, shapes), (channels, *size))


def iresnet_checkpoint(
    units: Sequence[int],
    weights: Mapping[str, NDArray[Any]],
    *,
    pixel_scale: float,
    epsilon: float,
) -> Checkpoint:
    """Return an iResNet with the output FC that has these weights, as ``read_checkpoint`` would.

    Args:
        units: of each stage.
        weights: all of its parameters and auxiliary states, by name.
        pixel_scale: what the pixels are multiplied by, after 127.5 is taken away.
        epsilon: of every BatchNorm.

    Raises:
        DataError: a weight is not finite, or has another shape than that of a network for images
            of 112 x 112.
    """
    with mx.name.NameManager():
        maps = layers.iresnet(layers.pixels("float32"), units=units)
        size = weights["fc1_gamma"].size
        network = layers.embedding(maps, "FC", _MAPS, size=size, dtype="float32")
    graph = to_json(network)
    for node in graph["nodes"]:
        if node["op"] == "BatchNorm":
            node["attrs"]["eps"] = repr(epsilon)
        elif node["op"] == "_mul_scalar":
            node["attrs"]["scalar"] = repr(pixel_scale)
    symbol = from_json(graph)
    shapes = first_shapes(symbol, (1, _CHANNELS, *FACE_SIZE))
    of_weights = {name: shapes[name] for name in weights}
    check_tensors("the state dict", weights, of_weights, "give an iResNet for 112 x 112 pixels")
    return Checkpoint(symbol, weights, (_CHANNELS, *FACE_SIZE))


def _channels(symbol: Any, path: Path) -> int:
    """Return the channels of the images, by the weight of the first convolution."""
    nodes, found = to_json(symbol)["nodes"], read_tensors(path)
    for node in nodes:
        if node["op"] == "Convolution":
            weight = found.get(nodes[node["inputs"][1][0]]["name"], np.empty(()))
            groups = int(attributes(node).get("num_group", "1"))
            return weight.shape[1] * groups if weight.ndim > 1 else _CHANNELS
    return _CHANNELS


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by their names without MXNet's ``arg:`` and ``aux:``."""
    return {name.split(":", 1)[-1]: array for name, array in read_parameters(path).items()}


def read_weights(path: Path, shapes: Mapping[str, Shape]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file that have these names and shapes.

    Raises:
        DataError: one is missing, has another shape, or is not finite.
    """
    found = read_tensors(path)
    for name in shapes:
        if name not in found:
            raise DataError(f"{path} lacks {name!r}; it belongs to another graph than its symbol")
    remedy = "give the graph and the image size that belong to these parameters"
    check_tensors(path, found, shapes, remedy)
    return {name: found[name] for name in shapes}


def take(
    parameters: Any, path: Path, found: Mapping[str, NDArray[Any]], names: list[str], remedy: str
) -> None:
    """Set parameters of these names to the arrays of a file.

    Raises:
        DataError: one has another shape, or is not finite; all have the values from before.
    """
    check_tensors(path, found, {name: parameters[name].shape for name in names}, remedy)
    for name in names:
        value = mx.nd.array(found[name], dtype=found[name].dtype)
        parameters[name].set_data(value.astype(parameters[name].dtype))


def check_tensors(
    file: object, found: Mapping[str, NDArray[Any]], shapes: Mapping[str, Shape], remedy: str
) -> None:
    """Raise ``DataError`` if a tensor has another shape, or is not finite.

    Some layers make numbers of what is not finite. A float64 may be too large for float32, in which
    networks compute.
    """
    for name, shape in shapes.items():
        array = found[name]
        if array.shape != shape:
            raise DataError(
                f"{file}: {name!r} has shape {array.shape}, this network's has {shape}; {remedy}"
            )
        with np.errstate(over="ignore"):
            is_finite = np.isfinite(np.asarray(array, np.float32)).all()
        if not is_finite:
            raise DataError(
                f"{file}: {name!r} has values that are not finite; the network has diverged, or "
                "the file is damaged: give an earlier epoch"
            )
