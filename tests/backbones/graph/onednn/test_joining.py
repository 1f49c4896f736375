"""Which convolutions, sums and activations become one operator, and that it computes the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backbones.graph.nodes import from_json, to_json
from backbones.graph.onednn.joining import join
from runtime.mxnet import mx


def joined(symbol: Any) -> Any:
    graph = to_json(symbol)
    return from_json(*join(graph["nodes"], graph["heads"]), graph["attrs"])


def parts(symbol: Any) -> list[str]:
    """The operators of a graph; of a joined one, those inside it."""
    found = []
    for node in to_json(symbol)["nodes"]:
        if node["op"] == "_sg_mkldnn_conv":
            inner = node["subgraphs"][0]["nodes"]
            found.append("+".join(part["op"] for part in inner if part["op"] != "null"))
        elif node["op"] != "null":
            found.append(node["op"])
    return found


def run(symbol: Any, shape: tuple[int, ...]) -> list[np.ndarray]:
    """The outputs of the second of two calls, as ``HostInference`` makes them.

    From its second call on, an operator uses the kernel and the primitive that it keeps.
    """
    generator = np.random.default_rng(1)
    shapes, _, _ = symbol.infer_shape(data=shape)
    sizes = sorted(zip(symbol.list_arguments(), shapes))
    values = {name: mx.nd.array(generator.normal(size=size)) for name, size in sizes}
    inputs = [values[name] for name in symbol.list_inputs()]
    operator = mx.nd.CachedOp(symbol, (("static_alloc", True), ("static_shape", True)))
    for _ in range(2):
        outputs = operator(*inputs)
    return [output.asnumpy() for output in (outputs if isinstance(outputs, list) else [outputs])]


def convolution(x: Any, name: str, channels: int = 8, **settings: Any) -> Any:
    return mx.sym.Convolution(
        x, num_filter=channels, **{"kernel": (3, 3), "pad": (1, 1), **settings}, name=name
    )


def relu(x: Any) -> Any:
    return mx.sym.Activation(x, act_type="relu")


def leaky(x: Any) -> Any:
    return mx.sym.LeakyReLU(x, act_type="leaky", slope=0.125)


DATA = mx.sym.var("data")
C0 = convolution(DATA, "c0")
C1 = convolution(C0, "c1")
ODD = convolution(DATA, "c0", 6)
BOTH = "Convolution+elemwise_add"

GRAPHS = {
    "relu": (relu(C0), ["Convolution+Activation"]),
    "leaky": (leaky(C0), ["Convolution+LeakyReLU"]),
    "no bias": (relu(convolution(DATA, "c0", no_bias=True)), ["Convolution+Activation"]),
    "sum": (C1 + C0, ["Convolution", BOTH]),
    "sum on the right": (C0 + C1, ["Convolution", BOTH]),
    "sum and relu": (relu(C1 + C0), ["Convolution", BOTH + "+Activation"]),
    "sum and leaky": (leaky(C0 + C1), ["Convolution", BOTH + "+LeakyReLU"]),
    "relu, then a sum": (relu(C1) + C0, ["Convolution", "Convolution+Activation", "elemwise_add"]),
    "two relus": (relu(relu(C0)), ["Convolution+Activation", "Activation"]),
    "with its own input": (convolution(DATA, "c0", 3) + DATA, [BOTH]),
    "twice itself": (C0 + C0, ["Convolution", "elemwise_add"]),
    "and a sigmoid": (mx.sym.sigmoid(C0), ["Convolution", "sigmoid"]),
    "of odd channels": (convolution(ODD, "c1", 6) + ODD, ["Convolution", BOTH]),
    "of groups": (convolution(ODD, "c1", 6, num_group=6) + ODD, ["Convolution", BOTH]),
    "needed by another": (mx.sym.Concat(relu(C0), C0), ["Convolution", "Activation", "Concat"]),
    "a sum that is needed again": (
        # The first convolution may not write over what the second one adds to.
        mx.sym.Concat(C1 + C0, convolution(C1, "c2") + C0),
        ["Convolution", "Convolution", "elemwise_add", BOTH, "Concat"],
    ),
    "a sum with a reshaped tensor": (
        C1 + mx.sym.Reshape(mx.sym.Reshape(C0, shape=(0, -1)), shape=(-1, 8, 5, 7)),
        ["Convolution", "Reshape", "Reshape", BOTH],
    ),
    "and what MXNet computes itself": (
        mx.sym.broadcast_mul(C1 + C0, mx.sym.mean(C0, axis=(2, 3), keepdims=True)),
        ["Convolution", BOTH, "mean", "broadcast_mul"],
    ),
    "an output": (mx.sym.Group([C0, relu(C0)]), ["Convolution", "Activation"]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_joined_operators_compute_the_same(name: str) -> None:
    symbol, expected = GRAPHS[name]
    found = joined(symbol)
    assert sorted(parts(found)) == sorted(expected)
    shape = (2, 3, 5, 7)
    for one, other in zip(run(found, shape), run(symbol, shape), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
