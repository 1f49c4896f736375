"""The network of the MXNet and Horovod examples for MNIST: two convolutions, two linear layers.

After LeNet-5 (LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998), with
ReLU and largest-of-four pooling.
"""

from __future__ import annotations

from backbones.classifiers.blocks import max_pool
from backbones.layers import Symbol, relu
from runtime.mxnet import mx


def features(x: Symbol) -> Symbol:
    """Return the features [batch, 512] of ``x``."""
    for number, channels in enumerate((20, 50), start=1):
        x = mx.sym.Convolution(x, num_filter=channels, kernel=(5, 5), name=f"conv{number}")
        x = max_pool(relu(x, f"relu{number}"), f"pool{number}")
    return relu(mx.sym.FullyConnected(x, num_hidden=512, name="fc1"), "relu3")
