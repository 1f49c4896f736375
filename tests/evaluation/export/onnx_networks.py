"""Graphs with drawn weights, by MXNet and by ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from backbones.checkpoint import Checkpoint
from backbones.network import initial_weights
from evaluation.export.graph import Form, Translation
from runtime.mxnet import mx


def drawn(symbol: Any, image_shape: tuple[int, ...], seed: int = 0) -> Checkpoint:
    """A graph with weights of which none is 0 or 1, as those of a trained network."""
    generator = np.random.default_rng(seed)
    shapes, _, auxiliary = symbol.infer_shape(data=(1, *image_shape))
    names = symbol.list_arguments() + symbol.list_auxiliary_states()
    weights = {}
    for name, shape in zip(names, shapes + auxiliary):
        if name.endswith("_weight"):
            weights[name] = initial_weights(symbol, image_shape, seed)[name].asnumpy()
        elif name != "data":
            spread = generator.uniform(0.5, 1.5, shape)
            is_shift = name.endswith(("_beta", "_bias", "_mean"))
            weights[name] = (spread - 1 if is_shift else spread).astype(np.float32)
        if "_se_conv" in name:
            # Where a sigmoid is steep, each of them enlarges differences, in MXNet as well.
            weights[name] *= 0.1
    return Checkpoint(symbol, weights, image_shape)


def calibrated(found: Checkpoint, images: np.ndarray, passes: int = 20) -> Checkpoint:
    """The same with the running statistics that these images give.

    Without them small differences grow from layer to layer in some networks, in MXNet too: a
    millionth of the input becomes a twentieth of the output of RegNetY_400MF.
    """
    network = found.network()
    with mx.autograd.record():
        for _ in range(passes):
            network(mx.nd.array(images)).wait_to_read()
    weights = {name: one.data().asnumpy() for name, one in network.parameters.items()}
    return found._replace(weights=weights)


def exported(found: Checkpoint, form: Form = Form()) -> Any:  # noqa: B008 (it is frozen)
    return Translation(found, form).model()


def by_mxnet(found: Checkpoint, images: np.ndarray) -> np.ndarray:
    network = found.network()
    network.hybridize()
    return network(mx.nd.array(images)).asnumpy()
