"""Sizes of the feature maps of a graph, by hand."""

from __future__ import annotations

from backbones.graph.memory import output_elements, recomputed_elements
from runtime.mxnet import mx


def test_sizes_by_hand() -> None:
    kernel = {"num_filter": 4, "kernel": (3, 3), "pad": (1, 1), "no_bias": True}
    x = mx.sym.Convolution(mx.sym.var("data"), **kernel, name="first")
    x = mx.sym.BatchNorm(x, name="norm")
    x = x + mx.sym.Convolution(x, **kernel, name="second")
    symbol = mx.sym.FullyConnected(x, num_hidden=2, name="features")
    maps = 4 * 8 * 6
    # Statistics of a BatchNorm are no maps.
    assert output_elements(symbol, (3, 8, 6)) == 4 * maps + 2
    # Cut after the norm and after the sum, which both parts before have as large outputs.
    largest, between = recomputed_elements(symbol, (8, 6))
    assert (largest, between) == (2 * maps, 2 * maps)
