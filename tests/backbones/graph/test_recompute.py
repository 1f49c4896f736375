"""A training pass in parts computes what the pass through the whole graph computes."""

from __future__ import annotations

import numpy as np
import pytest

from backbones.graph.recompute import cut, output_elements, recomputed_elements
from runtime.mxnet import mx
from tests.backbones.passes import DATA, act, assert_same, conv, create, norm, train


@pytest.mark.parametrize(("name", "output", "side"), [
    *(("tiny", "GNAP", 112), ("r18", "E", 48)),
    pytest.param("mbf", "F", 112, marks=pytest.mark.thorough),
])
def test_two_updates_equal_those_of_the_whole_graph(name, output, side, images) -> None:
    images = images[:, :, :side, :side]
    whole, parts = (create(name, side, net_output=output, recompute=one) for one in (False, True))
    assert_same(train(parts, images[:2]), train(whole, images[:2]))
    np.testing.assert_array_equal(parts.extract(images[:1]), whole.extract(images[:1]))
    with pytest.raises(AssertionError, match="backward pass is over"):
        parts.backward(None, None)


def test_where_a_graph_is_cut() -> None:
    parts = cut(mx.sym.elemwise_add(DATA, act(act(DATA), "tanh"), name="fc1"), (112, 112))
    assert [part.source for part in parts] == ["data"]
    assert parts[0].symbol.list_outputs() == ["fc1_output"]
    # Dropout is in the last part, and so drawn once.
    maps = DATA
    for number in range(4):
        maps = conv(maps, f"conv{number}", 4, 1, no_bias=True)
        maps = mx.sym.Dropout(maps, p=0.4, name="dropped") if number == 1 else maps
    parts = cut(maps, (8, 8))
    assert [part.source for part in parts] == ["data", "conv1"]
    assert "dropped_output" in parts[-1].symbol.get_internals().list_outputs()


def test_sizes_of_feature_maps_by_hand() -> None:
    x = norm(conv(DATA, "first", 4, no_bias=True))
    x = x + conv(x, "second", 4, no_bias=True)
    symbol = mx.sym.FullyConnected(x, num_hidden=2, name="features")
    maps = 4 * 8 * 6
    # Statistics of a BatchNorm are no maps.
    assert output_elements(symbol, (3, 8, 6)) == 4 * maps + 2
    # Cut after the norm and after the sum, which both parts before have as large outputs.
    assert recomputed_elements(symbol, (8, 6)) == (2 * maps, 2 * maps)
