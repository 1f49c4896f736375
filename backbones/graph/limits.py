"""The shapes of a graph from a file, and what it takes to compute it.

A graph of three kilobytes can ask for any memory and any time. MXNet infers the shapes of all its
tensors without making them; here they are held up to limits that no network for images reaches.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from backbones.graph import nodes as graph_nodes
from backbones.graph import operators
from backbones.graph.nodes import Node, Shape, first_shapes, to_json
from runtime.errors import DataError
from runtime.mxnet import mx
from runtime.untrusted.child import one_line

INPUT = "data"
# Elements of all parameters.
_MAX_PARAMETERS = 1 << 28
# Elements of the results for one image that are needed at a time.
_MAX_RESULTS = 1 << 26
# Multiplications for one image; r100 does 12.1 billion.
_MAX_PRODUCTS = 1 << 38
# oneDNN's kernels for groups of channels and for pooling are not those of its products.
_COST_OF_OTHERS = 16


def infer(symbol: Any, batch_shape: Shape, path: Path) -> dict[str, Shape]:
    """Return the shapes of all parameters and auxiliary states of a graph from a file.

    The batch is one image.

    Raises:
        DataError: nodes do not fit together, or only for one batch size, the output is not [b, D],
            or a limit is exceeded.
    """
    found, outputs = _inferred(symbol, batch_shape, path)
    if not found or any(not shape or min(shape) < 1 for shape in [*found, *outputs]):
        raise DataError(f"{path} does not determine the shapes of its parameters; copy it again")
    names = symbol.list_arguments() + symbol.list_auxiliary_states()
    shapes = dict(zip(names, found))
    del shapes[INPUT]
    if sum(map(math.prod, shapes.values())) > _MAX_PARAMETERS:
        raise DataError(f"{path} has more than {_MAX_PARAMETERS:,} parameters")
    nodes, of_nodes = to_json(symbol)["nodes"], first_shapes(symbol, batch_shape)
    if _most_results(nodes, of_nodes) > _MAX_RESULTS:
        raise DataError(
            f"{path} has results of more than {_MAX_RESULTS:,} elements at a time for one image"
        )
    if _products(nodes, of_nodes) > _MAX_PRODUCTS:
        raise DataError(f"{path} takes more than {_MAX_PRODUCTS:,} multiplications for one image")
    _check_shapes(nodes, of_nodes, path)
    of_two, results = _inferred(symbol, (2, *batch_shape[1:]), path)
    others = dict(zip(names, of_two))
    others.pop(INPUT, None)
    if shapes != others or not results or results[-1][0] != 2:
        raise DataError(f"{path} is a graph for one batch size only; export it again")
    if len(results[-1]) != 2:
        raise DataError(
            f"{path} gives {list(results[-1])} for two images; its output has to be [b, D]: end it "
            "with a Flatten or a FullyConnected"
        )
    return shapes


def _most_results(nodes: list[Node], shapes: dict[str, Shape]) -> int:
    """Return how many elements of results are needed at a time, if each is freed after its use."""
    sizes = [
        math.prod(shapes[node["name"]]) * operators.output_count(node)
        if node["op"] != "null" or node["name"] == INPUT
        else 0
        for node in nodes
    ]
    last_use = {source: index for index, node in enumerate(nodes) for source, *_ in node["inputs"]}
    needed = most = 0
    for index, node in enumerate(nodes):
        needed += sizes[index]
        most = max(most, needed)
        sources = {source for source, *_ in node["inputs"]}
        needed -= sum(sizes[source] for source in sources if last_use[source] == index)
    return most


def _products(nodes: list[Node], shapes: dict[str, Shape]) -> int:
    """Return the number of multiplications, weighted by the speed of MXNet's kernels."""
    total = 0
    for node in nodes:
        per_element = 1
        if node["op"] in ("Convolution", "FullyConnected"):
            given, kernel = (shapes[nodes[source]["name"]] for source, *_ in node["inputs"][:2])
            per_element = math.prod(kernel[1:])
            if node["op"] == "Convolution" and kernel[1] not in (1, given[1]):
                per_element *= _COST_OF_OTHERS
        elif node["op"] == "Pooling":
            per_element = math.prod(_sides(node)) * _COST_OF_OTHERS
        total += per_element * math.prod(shapes[node["name"]])
    return total


def _check_shapes(nodes: list[Node], shapes: dict[str, Shape], path: Path) -> None:
    """Refuse shapes that MXNet does not check.

    It would read beyond the input of a Reshape to more elements, and infers no shape of a global
    pooling, whose kernel may have other dimensions than its maps.
    """
    for node in nodes:
        name, said = node["name"], ""
        # All outputs of a node have one shape.
        given = shapes[nodes[node["inputs"][0][0]]["name"]] if node["inputs"] else ()
        if node["op"].lower() == "reshape" and math.prod(given) != math.prod(shapes[name]):
            said = f"reshapes {math.prod(given)} elements to {math.prod(shapes[name])}"
        sides = _sides(node)
        if node["op"] == "Pooling" and sides and len(given) != 2 + len(sides):
            said = f"pools {len(given)} dimensions with a kernel of {len(sides)}"
        if said:
            raise DataError(f"{path} is damaged: {name!r} {said}; copy it again")


def _sides(node: Node) -> list[int]:
    return [int(side) for side in re.findall(r"\d+", operators.attributes(node).get("kernel", ""))]


def _inferred(symbol: Any, batch_shape: Shape, path: Path) -> tuple[list[Shape], list[Shape]]:
    """Return the shapes of all inputs, and of all results with the embedding as the last."""
    try:
        arguments, outputs, auxiliary = graph_nodes.infer(symbol.get_internals(), batch_shape)
    except (mx.MXNetError, ValueError) as error:
        _, _, height, width = batch_shape
        raise DataError(
            f"{path} does not take images of {height} x {width} pixels ({one_line(str(error))})"
        ) from None
    return (arguments or []) + (auxiliary or []), outputs or []
