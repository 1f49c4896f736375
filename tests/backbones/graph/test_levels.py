"""Graphs cut at their BatchNorms; ``test_synchronized`` compares what the levels compute."""

from __future__ import annotations

import backbones
from backbones.graph.levels import cut
from backbones.graph.onednn import prelu
from runtime.mxnet import mx


def test_a_frozen_norm_stays_where_it_is() -> None:
    maps = mx.sym.Convolution(mx.sym.var("data"), num_filter=3, kernel=(1, 1))
    (level,) = cut(mx.sym.BatchNorm(maps, name="frozen", use_global_stats=True))
    assert level.symbol.list_auxiliary_states() == ["frozen_moving_mean", "frozen_moving_var"]
    assert not level.norms


def test_parameters_belong_to_one_level() -> None:
    """A PReLU's slope is used by the BatchNorm before it as well."""
    symbol = prelu.rewrite(backbones.build("mbf", embedding_size=16), (112, 112))
    names = [name for level in cut(symbol) for name in level.symbol.list_inputs()]
    found = [name for name in names if ":" not in name and not name.endswith("_one")]
    found = [name for name in found if "given" not in name and name != "data"]
    assert sorted(found) == sorted({*symbol.list_arguments()} - {"data", "fc1_gamma"})
