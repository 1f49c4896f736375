"""Classifiers without shortcuts: LeNet, for MNIST, and VGG and MobileNet, for small images."""

from __future__ import annotations

from collections.abc import Sequence

from backbones.classifiers.blocks import (
    biased_convolution,
    conv_norm_relu,
    global_average,
    norm_relu,
    pool,
)
from backbones.layers import Symbol, relu
from runtime.mxnet import mx

_VGG_CHANNELS = (64, 128, 256, 512, 512)
# Per unit: channels and stride.
_MOBILENET_UNITS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)


def lenet(x: Symbol) -> Symbol:
    """Return the features [batch, 512] of the network of MXNet's and Horovod's MNIST examples.

    After LeNet-5 (LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998),
    with ReLU and max pooling.
    """
    for number, channels in enumerate((20, 50), start=1):
        x = mx.sym.Convolution(x, num_filter=channels, kernel=(5, 5), name=f"conv{number}")
        x = pool(relu(x, f"relu{number}"), f"pool{number}", "max")
    return relu(mx.sym.FullyConnected(x, num_hidden=512, name="fc1"), "relu3")


def vgg(x: Symbol, *, counts: Sequence[int]) -> Symbol:
    """Return the features [batch, 512] of ``counts`` 3x3 convolutions per stage, with BatchNorm.

    Simonyan and Zisserman, Very Deep Convolutional Networks, arXiv:1409.1556, configurations A, B,
    D and E.
    """
    for stage, (channels, layers) in enumerate(zip(_VGG_CHANNELS, counts), start=1):
        for layer in range(1, layers + 1):
            name = f"conv{stage}_{layer}"
            x = norm_relu(biased_convolution(x, name, channels, kernel=3), f"{name}_bn")
        x = pool(x, f"pool{stage}", "max")
    return global_average(x)


def mobilenet(x: Symbol) -> Symbol:
    """Return the features [batch, 1024] of depthwise 3x3 and 1x1 convolutions in turn.

    Howard et al., MobileNets, arXiv:1704.04861; the strides are those of the CIFAR-10 tutorial.
    """
    width = 32
    x = conv_norm_relu(x, "conv0", width, kernel=3)
    for number, (channels, stride) in enumerate(_MOBILENET_UNITS, start=1):
        name = f"unit{number}"
        x = conv_norm_relu(x, f"{name}_conv1", width, kernel=3, stride=stride, groups=width)
        x = conv_norm_relu(x, f"{name}_conv2", channels, kernel=1)
        width = channels
    return global_average(x)
