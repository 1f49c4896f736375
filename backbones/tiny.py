"""A small residual network for examples and tests: minutes on two cores, not days on eight GPUs.

Everything else in a run stays as it is with a large network, so the whole program can be shown to
learn on any machine. It is built for a CPU: the first convolution brings the maps down to a quarter
of the image's size, before anything costly; a residual is a single convolution; and ReLU takes the
place of PReLU, whose backward pass costs more than a convolution's there.
"""

from __future__ import annotations

from backbones.layers import Symbol, batch_norm, convolution, relu

STAGE_CHANNELS = (32, 64, 128, 128)


def body(x: Symbol) -> Symbol:
    """Return the feature maps [batch, 128, height / 32, width / 32] (rounded up) of ``x``.

    Args:
        x: normalized pixels [batch, 3, height, width].
    """
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
