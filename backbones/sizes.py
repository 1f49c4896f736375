"""The sizes of networks, computed without their graphs: ``--dry-run`` does not load MXNet.

All are at 112x112 pixels, outputs per image. Tests compare each with the graph.

Shapes: c channels of the last feature maps, s their height and width, e embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

IMAGE_SIZE = 112
STAGE_CHANNELS = (64, 128, 256, 512)
"""Of an iResNet."""
SE_REDUCTION = 16
"""Channels of a map over those of the layer between the two of a squeeze-and-excitation."""


class Maps(NamedTuple):
    """The feature maps at the end of a body."""

    channels: int
    side: int

    @property
    def elements(self) -> int:
        """Per image."""
        return self.channels * self.side**2


class Sizes(NamedTuple):
    """Of layers: trained parameters, with fixed gammas, and elements of all operators' outputs."""

    parameters: int
    outputs: int


class BodySizes(NamedTuple):
    """See ``backbones.Architecture``."""

    parameters: int
    operator_outputs: int
    part_outputs: int
    between_parts: int


def _linear(inputs: int, embedding: int) -> Sizes:
    """``pre_fc1`` and the BatchNorm ``fc1``."""
    return Sizes(inputs * embedding + 3 * embedding, 2 * embedding)


def _fully_connected(maps: Maps, embedding: int, *, norm: bool, dropout: bool) -> Sizes:
    parameters, outputs = _linear(maps.elements, embedding)
    layers = norm + dropout
    return Sizes(parameters + 2 * maps.channels * norm, outputs + layers * maps.elements)


def _without_last_norm(maps: Maps, embedding: int) -> Sizes:
    parameters, outputs = _fully_connected(maps, embedding, norm=True, dropout=True)
    return Sizes(parameters - 2 * embedding, outputs - embedding)


def _pooled(maps: Maps, embedding: int) -> Sizes:
    parameters, outputs = _linear(maps.channels, embedding)
    return Sizes(parameters + 3 * maps.channels, outputs + 2 * maps.elements + 2 * maps.channels)


def _depthwise(maps: Maps, embedding: int) -> Sizes:
    parameters, outputs = _linear(maps.channels, embedding)
    return Sizes(parameters + maps.elements + 2 * maps.channels, outputs + 2 * maps.channels)


def _norm_aware(maps: Maps, embedding: int) -> Sizes:
    parameters = outputs = 0
    if embedding > maps.channels:
        parameters, outputs = (maps.channels + 3) * embedding, 3 * embedding * maps.side**2
        maps = Maps(embedding, maps.side)
    channels = maps.channels
    # bn6f, its square, the weights repeated, and the product; norms and weights; the mean, of which
    # a batch has one; pooling and what follows.
    outputs += 4 * maps.elements + 3 * maps.side**2 + 1 + 2 * channels + embedding
    parameters += 2 * channels + 2 * embedding
    if embedding < channels:
        parameters += 2 * channels + (channels + 1) * embedding
        outputs += embedding
    return Sizes(parameters, outputs)


OUTPUTS: Mapping[str, Callable[[Maps, int], Sizes]] = {
    "E": lambda maps, size: _fully_connected(maps, size, norm=True, dropout=True),
    "F": _without_last_norm,
    "FC": lambda maps, size: _fully_connected(maps, size, norm=True, dropout=False),
    "J": lambda maps, size: _fully_connected(maps, size, norm=False, dropout=False),
    "GAP": _pooled,
    "GDC": _depthwise,
    "GNAP": _norm_aware,
}
"""The layers from the last feature maps to an embedding, see ``backbones.outputs``."""


def iresnet(units: Sequence[int], *, se: bool) -> BodySizes:
    """Return the sizes of an iResNet with its output "FC", of 512."""
    channels, side = STAGE_CHANNELS[0], IMAGE_SIZE
    stem = channels * side**2
    parameters = 3 * 9 * channels + 3 * channels
    # The elements of all outputs, and of the last one, of each piece that --recompute may cut.
    pieces = [(2 * 3 * side**2 + stem, stem), (stem, stem), (stem, stem)]
    for count, width in zip(units, STAGE_CHANNELS):
        for unit in range(count):
            own = _residual_unit(channels, width, side, se=se, stride=1 if unit else 2)
            channels, side = width, side if unit else side // 2
            parameters += own.parameters
            pieces.append((own.outputs, width * side**2))
    maps = Maps(channels, side)
    pieces += [(maps.elements, maps.elements), (2 * 512, 512)]
    return BodySizes(
        parameters,
        operator_outputs=sum(outputs for outputs, _ in pieces),
        part_outputs=max(outputs for outputs, _ in pieces),
        between_parts=_between_parts(pieces),
    )


def _residual_unit(inputs: int, channels: int, side: int, *, se: bool, stride: int) -> Sizes:
    parameters = 2 * inputs + 9 * inputs * channels + 3 * channels + 9 * channels**2 + 2 * channels
    before, after = side**2, (side // stride) ** 2
    # Of the first BatchNorm; of three layers before the stride; of two after it, and the sum.
    outputs = inputs * before + 3 * channels * before + 3 * channels * after
    if stride > 1:
        parameters += inputs * channels + 2 * channels
        outputs += 2 * channels * after
    if se:
        inner = channels // SE_REDUCTION
        parameters += 2 * channels * inner + 2 * inner + channels
        outputs += 3 * channels + 2 * inner + channels * after
    return Sizes(parameters, outputs)


def _between_parts(pieces: Sequence[tuple[int, int]]) -> int:
    """What the parts of ``backbones.graph.recompute.cut`` pass on, given outputs of the pieces."""
    largest = max(outputs for outputs, _ in pieces)
    passed, part, last = 0, 0, 0
    for outputs, last_output in pieces:
        if part and part + outputs > largest:
            passed, part = passed + last, 0
        part, last = part + outputs, last_output
    return passed
