"""``python -m backbones.trial``: run a graph once, in a process that may die of it.

``backbones.graph.symbol_file`` asks for it; see ``runtime.untrusted.child``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from backbones.graph.nodes import Shape
from backbones.graph.onednn import prelu
from backbones.graph.symbol_file import check_shapes
from backbones.network import Network
from runtime.mxnet import mx
from runtime.untrusted.child import serve

_IMAGES = 2


def run_once(header: dict[str, Any], content: bytes) -> None:
    """Infer shapes and compute outputs, by the plain graph and by the forms for a CPU.

    Raises:
        DataError: the graph does not fit together.
        MXNetError: MXNet cannot compute it, or there is too little memory.
    """
    symbol = mx.sym.load_json(content.decode())
    image_shape: Shape = tuple(header["image_shape"])
    shapes = check_shapes(symbol, (1, *image_shape), Path(header["path"]))
    weights = {name: mx.nd.ones(shape) for name, shape in shapes.items()}
    images = np.zeros((_IMAGES, *image_shape), np.uint8)
    for graph in (symbol, prelu.rewrite(symbol, image_shape, weights)):
        network = Network(graph, symbol, weights, mx.cpu())
        network.extract(images)
    network.inference()(images)


if __name__ == "__main__":
    # Threads and memory that MXNet takes once do not count.
    mx.nd.zeros(1).asnumpy()
    serve(run_once)
