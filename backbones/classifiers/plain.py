"""Classifiers without shortcuts: LeNet, for MNIST, and VGG16, for small images."""

from __future__ import annotations

from backbones.classifiers.blocks import biased_convolution, global_average, norm_relu, pool
from backbones.layers import Symbol, relu
from runtime.mxnet import mx

_VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def lenet(x: Symbol) -> Symbol:
    """Return the features [batch, 512] of the network of MXNet's and Horovod's MNIST examples.

    After LeNet-5 (LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998),
    with ReLU and max pooling.
    """
    for number, channels in enumerate((20, 50), start=1):
        x = mx.sym.Convolution(x, num_filter=channels, kernel=(5, 5), name=f"conv{number}")
        x = pool(relu(x, f"relu{number}"), f"pool{number}", "max")
    return relu(mx.sym.FullyConnected(x, num_hidden=512, name="fc1"), "relu3")


def vgg16(x: Symbol) -> Symbol:
    """Return the features [batch, 512] of thirteen 3x3 convolutions with BatchNorm.

    Simonyan and Zisserman, Very Deep Convolutional Networks, arXiv:1409.1556, configuration D.
    """
    for stage, (channels, layers) in enumerate(_VGG_STAGES, start=1):
        for layer in range(1, layers + 1):
            name = f"conv{stage}_{layer}"
            x = norm_relu(biased_convolution(x, name, channels, kernel=3), f"{name}_bn")
        x = pool(x, f"pool{stage}", "max")
    return global_average(x)
