"""VGG16 for small images: thirteen 3x3 convolutions with BatchNorm, one linear layer.

Simonyan and Zisserman, Very Deep Convolutional Networks, arXiv:1409.1556, configuration D.
"""

from __future__ import annotations

from backbones.classifiers.blocks import biased_convolution, max_pool, norm_relu, pooled
from backbones.layers import Symbol

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def features(x: Symbol) -> Symbol:
    """Return the features [batch, 512] of ``x``."""
    for stage, (channels, layers) in enumerate(_STAGES, start=1):
        for layer in range(1, layers + 1):
            name = f"conv{stage}_{layer}"
            x = norm_relu(biased_convolution(x, name, channels, kernel=3), f"{name}_bn")
        x = max_pool(x, f"pool{stage}")
    return pooled(x)
