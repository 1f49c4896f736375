"""A small residual network for examples and tests: it trains in minutes on two cores.

The rest of a run is the same as with a large network, so any machine can test that the whole
program learns. The network is made for a CPU: the first convolution reduces the maps to a quarter
of the image's height and width; a residual is a single convolution; and the activation is ReLU,
since the backward pass of PReLU takes longer than that of a convolution there.
"""

from __future__ import annotations

from backbones.layers import Symbol, batch_norm, convolution, relu

STAGE_CHANNELS = (32, 64, 128, 128)


def body(x: Symbol) -> Symbol:
    """Return the feature maps [b, 128, h / 32, w / 32] (rounded up) of pixels [b, 3, h, w]."""
    x = convolution(x, "conv0", STAGE_CHANNELS[0], kernel=5, stride=4)
    x = relu(batch_norm(x, "bn0"), "relu0")
    x = residual_unit(x, "stage1_unit1", STAGE_CHANNELS[0])
    for stage, channels in enumerate(STAGE_CHANNELS[1:], start=2):
        x = convolution(x, f"stage{stage}_conv0", channels, kernel=3, stride=2)
        x = relu(batch_norm(x, f"stage{stage}_bn0"), f"stage{stage}_relu0")
        x = residual_unit(x, f"stage{stage}_unit1", channels)
    return x


def residual_unit(x: Symbol, name: str, channels: int) -> Symbol:
    """Return ``relu(x + residual)`` (He et al., arXiv:1512.03385)."""
    residual = convolution(x, f"{name}_conv1", channels, kernel=3)
    return relu(x + batch_norm(residual, f"{name}_bn1"), f"{name}_relu1")
