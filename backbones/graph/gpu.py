"""The graph that runs on a GPU: the same, with less memory for cuDNN, and reproducible dropout.

cuDNN tries several algorithms for each convolution, some of which trade memory for time. All
convolutions share one buffer, which grows to the largest of these. By default an algorithm may take
1 GB, which a million class centers would need more; InsightFace's networks are built with 256 MB.
That can cost time in float32, where cuDNN's transforms of large maps need more; float16 products on
tensor cores need little. MXNet obeys the limit if ``MXNET_CUDNN_AUTOTUNE_DEFAULT`` is 2 (see
``runtime.environment``); with 1 a user lifts it.

cuDNN's dropout draws from a state of its own, which a seed does not set once it is in use. MXNet's
kernel draws from the generator that ``mx.random.seed`` sets, as on a CPU.
"""

from __future__ import annotations

from backbones.graph.nodes import from_json, to_json
from backbones.layers import Symbol

WORKSPACE = 256
"""Most memory of a convolution's algorithm in MB (2^20 bytes)."""


def rewrite(symbol: Symbol) -> Symbol:
    """Return the graph with at most ``WORKSPACE`` for each convolution, and MXNet's dropout."""
    graph = to_json(symbol)
    for node in graph["nodes"]:
        if node["op"] == "Convolution":
            node["attrs"]["workspace"] = str(WORKSPACE)
        elif node["op"] == "Dropout":
            node["attrs"]["cudnn_off"] = "True"
    return from_json(graph)
