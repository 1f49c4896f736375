"""iResNet: the residual networks of ArcFace.

The publications call them ResNet-50, ResNet-100 and so on, but the unit differs from that of image
classification: BatchNorm at both ends, PReLU inside, the stride in the second convolution and no
activation after the sum (Han et al., arXiv:1610.02915; Deng et al., arXiv:1801.07698). All tensor
names are those of the InsightFace checkpoints for MXNet, so each reads the weights of the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from backbones.layers import Symbol, batch_norm, convolution, prelu
from runtime.mxnet import mx

_STAGE_CHANNELS = (64, 128, 256, 512)
# Channels of a map over those of the layer between the two of a squeeze-and-excitation.
_SE_REDUCTION = 16


def body(x: Symbol, *, units: Sequence[int], se: bool = False) -> Symbol:
    """Return the feature maps [b, 512, h / 16, w / 16] of normalized pixels [b, 3, h, w].

    Each of the four stages has a number of residual ``units``, with ``se`` of the kind that weighs
    its channels.
    """
    x = convolution(x, "conv0", _STAGE_CHANNELS[0], kernel=3)
    x = prelu(batch_norm(x, "bn0"), "relu0")
    for stage, (count, channels) in enumerate(zip(units, _STAGE_CHANNELS), start=1):
        x = residual_unit(x, f"stage{stage}_unit1", channels, stride=2, se=se)
        for unit in range(2, count + 1):
            x = residual_unit(x, f"stage{stage}_unit{unit}", channels, stride=1, se=se)
    return x


def residual_unit(x: Symbol, name: str, channels: int, *, stride: int, se: bool = False) -> Symbol:
    """Return ``x`` plus its residual; a unit with a stride projects the shortcut."""
    residual = convolution(batch_norm(x, f"{name}_bn1"), f"{name}_conv1", channels, kernel=3)
    residual = prelu(batch_norm(residual, f"{name}_bn2"), f"{name}_relu1")
    residual = convolution(residual, f"{name}_conv2", channels, kernel=3, stride=stride)
    residual = batch_norm(residual, f"{name}_bn3")
    if se:
        residual = squeeze_and_excitation(residual, f"{name}_se", channels)
    if stride > 1:
        x = convolution(x, f"{name}_conv1sc", channels, kernel=1, stride=stride)
        x = batch_norm(x, f"{name}_sc")
    return residual + x


def squeeze_and_excitation(x: Symbol, name: str, channels: int) -> Symbol:
    """Return ``x`` with every channel times a weight that follows from the means of all channels.

    Two layers with biases between mean and sigmoid (Hu et al., arXiv:1709.01507).
    """
    means = mx.sym.Pooling(
        x, kernel=(7, 7), global_pool=True, pool_type="avg", name=f"{name}_pool1"
    )
    one = {"kernel": (1, 1), "stride": (1, 1), "pad": (0, 0)}
    inner = mx.sym.Convolution(
        means, num_filter=channels // _SE_REDUCTION, **one, name=f"{name}_conv1"
    )
    inner = prelu(inner, f"{name}_relu1")
    weights = mx.sym.Convolution(inner, num_filter=channels, **one, name=f"{name}_conv2")
    weights = mx.sym.Activation(weights, act_type="sigmoid", name=f"{name}_sigmoid")
    return mx.sym.broadcast_mul(x, weights)
