"""Sizes of the feature maps of a training step, from the shapes that MXNet infers for a graph.

What a step allocates for maps and their gradients is near the sum of the outputs of all operators:
MXNet frees outputs that the backward pass does not read, and adds gradients. ``training.plan``
multiplies these numbers with what was measured; a test compares them with the arrays of a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from backbones.graph.nodes import Shape, first_shapes, to_json
from backbones.graph.recompute import cut
from backbones.layers import Symbol


def output_elements(symbol: Symbol, image_shape: Shape) -> int:
    """Return the number of elements per image [c, h, w] of the outputs of all operators."""
    return _sum_of_outputs(symbol, first_shapes(symbol, (1, *image_shape)))


def recomputed_elements(symbol: Symbol, image_size: tuple[int, int]) -> tuple[int, int]:
    """Return the sizes per image of a step of ``backbones.graph.recompute``.

    The first is the number of elements of the outputs of the largest part's operators, the second
    that of the tensors between the parts, which exist during the whole step.
    """
    shapes = first_shapes(symbol, (1, 3, *image_size))
    parts = cut(symbol, image_size)
    between = sum(math.prod(shapes[part.source]) for part in parts[1:])
    return max(_sum_of_outputs(part.symbol, shapes) for part in parts), between


def _sum_of_outputs(symbol: Symbol, shapes: Mapping[str, Shape]) -> int:
    nodes = to_json(symbol)["nodes"]
    return sum(math.prod(shapes[node["name"]]) for node in nodes if node["op"] != "null")
