"""The registry of backbones: their names, how each is built, and its sizes.

Names come from users, so they are checked against one table before anything else happens; a network
is never found by evaluating its name. The table has the sizes because a dry run computes the memory
of a rank without loading MXNet, which nothing here imports before ``build`` is called.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from backbones import sizes
from backbones.sizes import Maps
from runtime.errors import ConfigError, did_you_mean

# With --recompute, the peak memory of the largest part over the outputs of its operators; it is not
# planned ahead. Measured on a CPU with r50 at batch 16.
_PART_KEPT = 3.1
# With bfloat16, the share of the bytes that stays. Measured on a CPU with r18 (0.54) and mbf (0.63)
# at batches of 4 and 12.
_NARROW = 0.63


@dataclass(frozen=True)
class Architecture:
    """How a network is built, and its sizes at 112x112 pixels."""

    module: str
    """The module of this package whose ``body`` builds the feature maps."""
    output: str
    """Its own output, a key of ``sizes.OUTPUTS``."""
    maps: Maps
    """The body's last feature maps."""
    body_parameters: int
    """Trained parameters of the body (weights, gammas, betas, slopes)."""
    operator_outputs: int
    """Elements of all operators' outputs per image, with an embedding of 512."""
    kept: float
    """Peak memory of a step over ``operator_outputs``, measured on a CPU by enlarging the batch."""
    part_outputs: int
    """Elements of the outputs per image of the largest part's operators, with ``--recompute``."""
    between_parts: int
    """Elements per image that one part passes to the next, in all, with ``--recompute``."""
    reduction: int = 16
    """Side of an image over that of the last feature maps, which is rounded up."""
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


def _iresnet(units: tuple[int, ...], *, se: bool) -> Architecture:
    parameters, operator_outputs, part_outputs, between_parts = sizes.iresnet(units, se=se)
    return Architecture(
        "iresnet",
        output="FC",
        maps=Maps(512, 7),
        body_parameters=parameters,
        operator_outputs=operator_outputs,
        kept=1.35,
        part_outputs=part_outputs,
        between_parts=between_parts,
        arguments={"units": units, "se": se},
    )


_ARCHITECTURES: Mapping[str, Architecture] = {
    **{name: _iresnet(units, se=False) for name, units in _UNITS.items()},
    **{name + SE: _iresnet(units, se=True) for name, units in _UNITS.items()},
    "mbf": Architecture(
        "mobilefacenet",
        output="GDC",
        maps=Maps(512, 7),
        body_parameters=911_232,
        operator_outputs=9_610_752,
        kept=1.2,
        part_outputs=752_640,
        between_parts=1_655_808,
    ),
    "tiny": Architecture(
        "tiny",
        output="J",
        maps=Maps(128, 4),
        body_parameters=584_416,
        operator_outputs=397_952,
        kept=1.05,
        part_outputs=100_352,
        between_parts=81_536,
        reduction=32,
    ),
}


def names() -> list[str]:
    """Return the names of all networks, in the order of the table."""
    return list(_ARCHITECTURES)


def check(name: str) -> None:
    """Raise ``ConfigError`` if there is no network of this name."""
    if name not in _ARCHITECTURES:
        plain = [name for name in _ARCHITECTURES if not name.endswith(SE)]
        raise ConfigError(
            f"network {name!r} is unknown{did_you_mean(name, _ARCHITECTURES)}; there are "
            f"{', '.join(plain)}, and r18{SE} and so on with squeeze and excitation"
        )


def own_output(name: str) -> str:
    """Return the output that a network has unless told otherwise."""
    check(name)
    return _ARCHITECTURES[name].output


def check_image_size(name: str, image_size: tuple[int, int], output: Optional[str] = None) -> None:
    """Raise ``ConfigError`` if a network with this output cannot take images of this size.

    All do but those with the kernel of GDC, which is as large as the maps of 112x112 pixels are.
    """
    check(name)
    architecture = _ARCHITECTURES[name]
    side, reduction = architecture.maps.side, architecture.reduction
    least = (side - 1) * reduction + 1
    if (output or architecture.output) == "GDC" and min(image_size) < least:
        height, width = image_size
        rows, columns = (-(-size // reduction) for size in image_size)
        raise ConfigError(
            f"--network {name} cannot take images of {height} x {width}: its last maps are "
            f"{rows} x {columns} then, and its output GDC weighs {side} x {side} positions; give "
            f"images of {least} x {least} or larger, or another --net-output such as FC"
        )


def parameter_count(name: str, embedding_size: int = 512, output: Optional[str] = None) -> int:
    """Return the number of trained parameters at 112x112 pixels, without loading MXNet.

    As is usual, the fixed gamma of the last BatchNorm is counted and running statistics are not.
    """
    check(name)
    architecture = _ARCHITECTURES[name]
    layers = sizes.OUTPUTS[output or architecture.output](architecture.maps, embedding_size)
    return architecture.body_parameters + layers.parameters


def activation_bytes(
    name: str,
    batch_size: int,
    *,
    recompute: bool = False,
    output: Optional[str] = None,
    dtype: str = "float32",
) -> int:
    """Return the bytes of feature maps, their gradients and workspace in a training step.

    At 112x112 pixels, with an embedding of 512; measured with r18, r50 and mbf. ``dtype`` is
    float32, or bfloat16 on a CPU.
    """
    check(name)
    architecture = _ARCHITECTURES[name]
    if recompute:
        # The output is less than the largest part.
        elements = architecture.part_outputs * _PART_KEPT + architecture.between_parts
    else:
        own, chosen = (
            sizes.OUTPUTS[key](architecture.maps, 512).outputs
            for key in (architecture.output, output or architecture.output)
        )
        elements = (architecture.operator_outputs - own + chosen) * architecture.kept
    share = _NARROW if dtype == "bfloat16" else 1
    return round(4 * share * batch_size * elements)


def build(
    name: str, *, embedding_size: int = 512, dtype: str = "float32", output: Optional[str] = None
) -> Any:
    """Return the graph of a network: an ``mx.sym.Symbol`` from ``data`` to ``fc1_output``.

    The input is RGB, 0-255, float32 [batch, 3, height, width], and normalized in the graph; the
    output float32 [batch, embedding_size]. The body computes in ``dtype``, float32 or float16.
    ``output`` is a key of ``sizes.OUTPUTS``, None the network's own.

    Raises:
        ConfigError: there is no network of this name.
    """
    check(name)
    from backbones import layers, outputs
    from runtime.mxnet import mx

    architecture = _ARCHITECTURES[name]
    module = importlib.import_module(f"{__name__}.{architecture.module}")
    # A name manager of its own: unnamed nodes count from zero in every graph, not in every process.
    with mx.name.NameManager():
        maps = module.body(layers.pixels(dtype), **architecture.arguments)
        chosen = output or architecture.output
        return outputs.embedding(maps, chosen, architecture.maps, size=embedding_size, dtype=dtype)
