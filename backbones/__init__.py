"""The registry of backbones: their names, how each is built, and its sizes.

Names come from users, so they are checked against one table before anything else happens; a network
is never found by evaluating its name. The table has the sizes because a dry run computes the memory
of a rank without loading MXNet, which nothing here imports before ``build`` is called.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.errors import ConfigError, did_you_mean

# With --recompute, the peak memory of the largest part over the outputs of its operators; it is not
# planned ahead. Measured on a CPU with r50 at batch 16.
_PART_KEPT = 3.1


@dataclass(frozen=True)
class Architecture:
    """How a network is built, and its sizes at 112x112 pixels."""

    module: str
    """The module of this package whose ``body`` builds the feature maps."""
    body_parameters: int
    """Trained parameters of the body (weights, gammas, betas, slopes)."""
    body_outputs: int
    """Elements of the body's output per image, which the embedding layer reads."""
    operator_outputs: int
    """Elements of all operators' outputs per image, with an embedding of 512."""
    kept: float
    """Peak memory of a step over ``operator_outputs``, measured on a CPU by enlarging the batch."""
    part_outputs: int
    """Elements of the outputs per image of the largest part's operators, with ``--recompute``."""
    between_parts: int
    """Elements per image that one part passes to the next, in all, with ``--recompute``."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for ``body``."""


def _iresnet(
    units: tuple[int, ...], body_parameters: int, operator_outputs: int, between_parts: int
) -> Architecture:
    return Architecture(
        "iresnet",
        body_parameters=body_parameters,
        body_outputs=512 * 7 * 7,
        operator_outputs=operator_outputs,
        kept=1.35,
        part_outputs=4_214_784,
        between_parts=between_parts,
        arguments={"units": units},
    )


# Units per stage as InsightFace's MXNet networks (fresnet) count them: "r200" has 66 units.
_ARCHITECTURES: Mapping[str, Architecture] = {
    "r18": _iresnet((2, 2, 2, 2), 11_179_008, 12_695_552, 1_103_872),
    "r34": _iresnet((3, 4, 6, 3), 21_292_736, 17_085_952, 1_304_576),
    "r50": _iresnet((3, 4, 14, 3), 30_744_256, 19_895_808, 1_354_752),
    "r74": _iresnet((3, 6, 24, 3), 43_150_272, 24_813_056, 1_404_928),
    "r90": _iresnet((3, 8, 30, 3), 50_830_528, 28_325_376, 1_455_104),
    "r98": _iresnet((3, 4, 38, 3), 59_098_816, 28_325_376, 1_455_104),
    "r100": _iresnet((3, 13, 30, 3), 52_309_568, 31_837_696, 1_555_456),
    "r124": _iresnet((3, 13, 40, 5), 73_568_320, 35_701_248, 1_605_632),
    "r134": _iresnet((3, 10, 50, 3), 75_050_944, 36_754_944, 1_605_632),
    "r136": _iresnet((3, 13, 48, 3), 73_575_488, 38_159_872, 1_605_632),
    "r140": _iresnet((3, 15, 48, 3), 74_167_104, 39_564_800, 1_705_984),
    "r160": _iresnet((3, 24, 49, 3), 78_010_816, 46_238_208, 1_806_336),
    "r200": _iresnet((3, 24, 36, 3), 62_652_096, 41_672_192, 1_756_160),
    "mbf": Architecture(
        "mobilefacenet",
        body_parameters=937_344,
        body_outputs=512,
        operator_outputs=9_610_752,
        kept=1.2,
        part_outputs=752_640,
        between_parts=1_655_808,
    ),
    "tiny": Architecture(
        "tiny",
        body_parameters=584_416,
        body_outputs=128 * 4 * 4,
        operator_outputs=397_952,
        kept=1.05,
        part_outputs=100_352,
        between_parts=81_536,
    ),
}


def names() -> list[str]:
    """Return the names of all networks, in the order of the table."""
    return list(_ARCHITECTURES)


def check(name: str) -> None:
    """Raise ``ConfigError`` if there is no network of this name."""
    if name not in _ARCHITECTURES:
        raise ConfigError(
            f"network {name!r} is unknown{did_you_mean(name, _ARCHITECTURES)}; "
            f"there are {', '.join(_ARCHITECTURES)}"
        )


def parameter_count(name: str, embedding_size: int = 512) -> int:
    """Return the number of trained parameters at 112x112 pixels, without loading MXNet.

    As is usual, the fixed gamma of the last BatchNorm is counted and running statistics are not.
    """
    check(name)
    architecture = _ARCHITECTURES[name]
    weights, bias, gamma, beta = architecture.body_outputs, 1, 1, 1
    return architecture.body_parameters + embedding_size * (weights + bias + gamma + beta)


def activation_bytes(name: str, batch_size: int, *, recompute: bool = False) -> int:
    """Return the bytes of feature maps, their gradients and workspace in a float32 training step.

    At 112x112 pixels; measured with r18, r50 and mbf.
    """
    check(name)
    architecture = _ARCHITECTURES[name]
    if recompute:
        elements = architecture.part_outputs * _PART_KEPT + architecture.between_parts
    else:
        elements = architecture.operator_outputs * architecture.kept
    return round(4 * batch_size * elements)


def build(name: str, *, embedding_size: int = 512, dtype: str = "float32") -> Any:
    """Return the graph of a network: an ``mx.sym.Symbol`` from ``data`` to ``fc1_output``.

    The input is RGB, 0-255, float32 [batch, 3, height, width], and normalized in the graph; the
    output float32 [batch, embedding_size]. The body computes in ``dtype``, float32 or float16.

    Raises:
        ConfigError: there is no network of this name.
    """
    check(name)
    from backbones import layers
    from runtime.mxnet import mx

    architecture = _ARCHITECTURES[name]
    module = importlib.import_module(f"{__name__}.{architecture.module}")
    # A name manager of its own: unnamed nodes count from zero in every graph, not in every process.
    with mx.name.NameManager():
        features = module.body(layers.pixels(dtype), **architecture.arguments)
        return layers.embedding(features, size=embedding_size, dtype=dtype)
