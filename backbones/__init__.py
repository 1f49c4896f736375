"""The registry of backbones: their names, and how each is built.

Names come from users, so they are checked against one table before anything else happens; a network
is never found by evaluating its name. Nothing here imports MXNet before ``build`` is called.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from runtime.options import check_name

_FACE_SHAPE = 3, 112, 112


@dataclass(frozen=True)
class Architecture:
    """How a network is built."""

    body: str
    """The function of ``backbones.layers`` that builds the feature maps."""
    output: str
    """Its own output, one of ``options.OUTPUTS``."""
    maps: tuple[int, int]
    """Channels and side of the body's last feature maps, of images of 112x112 pixels."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for ``body``."""


# Units per stage as InsightFace's MXNet networks (fresnet) count them: "r200" has 66 units.
_UNITS = {
    "r18": (2, 2, 2, 2),
    "r34": (3, 4, 6, 3),
    "r49": (3, 4, 14, 3),
    "r50": (3, 4, 14, 3),
    "r74": (3, 6, 24, 3),
    "r90": (3, 8, 30, 3),
    "r98": (3, 4, 38, 3),
    "r99": (3, 8, 35, 3),
    "r100": (3, 13, 30, 3),
    "r101": (3, 4, 23, 3),
    "r124": (3, 13, 40, 5),
    "r134": (3, 10, 50, 3),
    "r136": (3, 13, 48, 3),
    "r140": (3, 15, 48, 3),
    "r152": (3, 8, 36, 3),
    "r160": (3, 24, 49, 3),
    "r200": (3, 24, 36, 3),
    "r269": (3, 30, 48, 8),
}
SE = "-se"
"""Ends the names of iResNets with squeeze and excitation."""
_ARCHITECTURES: Mapping[str, Architecture] = {
    **{
        name + end: Architecture("iresnet", "FC", (512, 7), {"units": units, "se": bool(end)})
        for end in ("", SE)
        for name, units in _UNITS.items()
    },
    "mbf": Architecture("mobilefacenet", "GDC", (512, 7)),
    "tiny": Architecture("tiny", "J", (128, 4)),
}


def names() -> list[str]:
    """Return the names of all networks, in the order of the table."""
    return list(_ARCHITECTURES)


def check(name: str) -> None:
    """Raise ``ConfigError`` if there is no network of this name."""
    check_name("network", name, _ARCHITECTURES)


def own_output(name: str) -> str:
    """Return the output that a network has unless told otherwise."""
    check(name)
    return _ARCHITECTURES[name].output


def parameter_count(
    name: str,
    embedding_size: int = 512,
    output: Optional[str] = None,
    patterns: Sequence[str] = (),
) -> int:
    """Return the number of trained parameters at 112x112 pixels, from the shapes of the graph.

    As is usual, the fixed gamma of the last BatchNorm is counted and running statistics are not.
    Parameters that ``patterns`` of ``--freeze`` fit are not counted either. For the network see
    ``build``.

    Raises:
        ConfigError: there is no network of this name, or nothing fits a pattern.
    """
    from backbones.graph import frozen

    symbol = build(name, embedding_size=embedding_size, output=output)
    fixed = frozen.find(patterns, symbol) | {"data"}
    shapes, _, _ = symbol.infer_shape(data=(1, *_FACE_SHAPE))
    named = zip(symbol.list_arguments(), shapes)
    return sum(math.prod(shape) for name, shape in named if name not in fixed)


def build(
    name: str, *, embedding_size: int = 512, dtype: str = "float32", output: Optional[str] = None
) -> Any:
    """Return the graph of a network: an ``mx.sym.Symbol`` from ``data`` to ``fc1_output``.

    The input is RGB, 0-255, float32 [batch, 3, height, width], and normalized in the graph; the
    output float32 [batch, embedding_size]. The body computes in ``dtype``, float32 or float16.
    ``output`` is one of ``options.OUTPUTS``, None the network's own.

    Raises:
        ConfigError: there is no network of this name.
    """
    check(name)
    from backbones import layers
    from runtime.mxnet import mx

    architecture = _ARCHITECTURES[name]
    body = getattr(layers, architecture.body)
    # A name manager of its own: unnamed nodes count from zero in every graph, not in every process.
    with mx.name.NameManager():
        maps = body(layers.pixels(dtype), **architecture.arguments)
        chosen = output or architecture.output
        return layers.embedding(maps, chosen, architecture.maps, size=embedding_size, dtype=dtype)
