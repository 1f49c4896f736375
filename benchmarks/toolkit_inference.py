"""A backbone's embeddings on the CPU: as training computes them, as verification does, and less."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
from typing_extensions import override

from backbones.graph.nodes import from_json, moved, to_json
from backbones.inference import HostInference
from backbones.model import Backbone
from backbones.options import BackboneOptions
from benchmarks.worker import Subject
from runtime.mxnet import mx

_SIZE = (112, 112)
_BETWEEN_LAYERS = ("BatchNorm", "LeakyReLU", "Activation", "Dropout")


class GraphOfTraining(Subject):
    """The graph that trains, outside of training."""

    def __init__(
        self, network: str, batch: int, model: Optional[str] = None, dtype: str = "float32"
    ) -> None:
        """Args: a backbone's name; images of a step; or a checkpoint PREFIX,EPOCH; the format."""
        if model is None:
            self._backbone = Backbone.create(BackboneOptions(network=network, dtype=dtype))
            _vary_slopes(self._backbone)
        else:
            prefix, _, epoch = model.rpartition(",")
            self._backbone = Backbone.load(prefix, int(epoch), dtype=dtype)
        self._backbone.hybridize()
        rng = np.random.default_rng(0)
        self._images = rng.integers(0, 256, (batch, 3, *_SIZE), np.uint8)

    @override
    def step(self) -> None:
        self._backbone.extract(self._images)


class GraphOfInference(GraphOfTraining):
    """What verification and validation call."""

    def __init__(self, network: str, batch: int, **options: Any) -> None:
        """Args: as of ``GraphOfTraining``."""
        super().__init__(network, batch, **options)
        self._infer = self._backbone.inference()

    @override
    def step(self) -> None:
        self._infer(self._images)


class LayersAlone(GraphOfTraining):
    """The convolutions and the linear layer, with nothing between them: the floor."""

    def __init__(self, network: str, batch: int, **options: Any) -> None:
        """Args: as of ``GraphOfTraining``."""
        super().__init__(network, batch, **options)
        weights = {name: p.data().asnumpy() for name, p in self._backbone.parameters.items()}
        self._infer = HostInference(_layers_of(self._backbone.graph), weights)

    @override
    def step(self) -> None:
        self._infer(self._images)


def _vary_slopes(backbone: Backbone) -> None:
    """Give every channel a slope of its own, as training does."""
    rng = np.random.default_rng(0)
    for name, parameter in backbone.parameters.items():
        if "relu" in name:
            parameter.set_data(mx.nd.array(rng.uniform(-1, 1, parameter.shape)))


def _layers_of(symbol: Any) -> Any:
    """Return a graph without BatchNorms and activations."""
    graph = to_json(symbol)
    indices: dict[int, int] = {}
    nodes: list[dict[str, Any]] = []
    for index, node in enumerate(graph["nodes"]):
        inputs = [moved(entry, indices) for entry in node["inputs"]]
        if node["op"] in _BETWEEN_LAYERS:
            indices[index] = inputs[0][0]
        else:
            indices[index] = len(nodes)
            nodes.append({**node, "inputs": inputs})
    heads = [moved(entry, indices) for entry in graph["heads"]]
    return from_json({**graph, "nodes": nodes, "heads": heads})
