"""MobileFaceNet: about one million parameters, for phones and for training without a GPU.

Inverted residual units as in MobileNetV2, but with early downsampling, PReLU, and the output "GDC":
a depthwise convolution over the whole last map in place of average pooling, so that the network can
weigh the center of a face more than its corners (Chen et al., arXiv:1804.07573, table 1). Tensor
names follow the InsightFace checkpoint "y1", whose weights fit this graph.
"""

from __future__ import annotations

from backbones.layers import DEFAULT_EPSILON, Symbol, batch_norm, convolution, prelu

# Per stage: name of the unit that halves the maps and channels inside it; the same of the residual
# units after it, and how many they are; channels of their outputs.
_STAGES = (
    ("dconv_23", 128, "res_3", 128, 4, 64),
    ("dconv_34", 256, "res_4", 256, 6, 128),
    ("dconv_45", 512, "res_5", 256, 2, 128),
)
_STEM_CHANNELS, _FINAL_CHANNELS = 64, 512


def body(x: Symbol) -> Symbol:
    """Return the feature maps [b, 512, h / 16, w / 16] of normalized pixels [b, 3, h, w]."""
    x = conv_unit(x, "conv_1", _STEM_CHANNELS, kernel=3, stride=2)
    x = conv_unit(x, "conv_2_dw", _STEM_CHANNELS, kernel=3, groups=_STEM_CHANNELS)
    for down, wide, residual, expansion, units, channels in _STAGES:
        x = bottleneck(x, down, wide, channels, stride=2)
        for unit in range(units):
            x = bottleneck(x, f"{residual}_block{unit}", expansion, channels, stride=1) + x
    return conv_unit(x, "conv_6sep", _FINAL_CHANNELS, kernel=1)


def bottleneck(x: Symbol, name: str, expansion: int, channels: int, *, stride: int) -> Symbol:
    """Return expansion, depthwise convolution and linear projection of ``x``."""
    x = conv_unit(x, f"{name}_conv_sep", expansion, kernel=1)
    x = conv_unit(x, f"{name}_conv_dw", expansion, kernel=3, stride=stride, groups=expansion)
    x = convolution(x, f"{name}_conv_proj_conv2d", channels, kernel=1)
    return batch_norm(x, f"{name}_conv_proj_batchnorm", epsilon=DEFAULT_EPSILON)


def conv_unit(
    x: Symbol, name: str, channels: int, *, kernel: int, stride: int = 1, groups: int = 1
) -> Symbol:
    """Return convolution, BatchNorm and PReLU."""
    x = convolution(x, f"{name}_conv2d", channels, kernel=kernel, stride=stride, groups=groups)
    return prelu(batch_norm(x, f"{name}_batchnorm", epsilon=DEFAULT_EPSILON), f"{name}_relu")
