"""A training pass in parts computes what the pass through the whole graph computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backbones.graph.recompute import cut
from runtime.mxnet import mx
from tests.backbones.passes import assert_same, create, train

SIZE = (112, 112)


@pytest.mark.parametrize(
    ("name", "output", "side"),
    [
        *(("tiny", "GNAP", 112), ("r18", "E", 48)),
        pytest.param("mbf", "F", 112, marks=pytest.mark.thorough),
    ],
)
def test_two_updates_equal_those_of_the_whole_graph(name, output, side, images) -> None:
    images = images[:, :, :side, :side]
    whole, parts = (create(name, side, net_output=output, recompute=one) for one in (False, True))
    assert_same(train(parts, images[:2]), train(whole, images[:2]))
    np.testing.assert_array_equal(parts.extract(images[:1]), whole.extract(images[:1]))
    with pytest.raises(AssertionError, match="backward pass is over"):
        parts.backward(None, None)


def test_where_a_graph_is_cut() -> None:
    data: Any = mx.sym.var("data")
    long_way = mx.sym.Activation(mx.sym.Activation(data, act_type="relu"), act_type="tanh")
    parts = cut(mx.sym.elemwise_add(data, long_way, name="fc1"), SIZE)
    assert [part.source for part in parts] == ["data"]
    assert parts[0].symbol.list_outputs() == ["fc1_output"]
    # Dropout is in the last part, and so drawn once.
    maps = data
    for number in range(4):
        name = f"conv{number}"
        maps = mx.sym.Convolution(maps, num_filter=4, kernel=(1, 1), no_bias=True, name=name)
        maps = mx.sym.Dropout(maps, p=0.4, name="dropped") if number == 1 else maps
    parts = cut(maps, (8, 8))
    assert [part.source for part in parts] == ["data", "conv1"]
    assert "dropped_output" in parts[-1].symbol.get_internals().list_outputs()
