"""Graphs that are run once in another process."""

from __future__ import annotations

import json
from typing import Any, Optional

from backbones.graph.nodes import to_json
from runtime.mxnet import mx
from runtime.untrusted import child


def tried(maps: Any) -> Optional[str]:
    symbol = mx.sym.FullyConnected(maps, num_hidden=4, name="fc1")
    header = {"path": "model-symbol.json", "image_shape": (3, 8, 8)}
    content = json.dumps(to_json(symbol)).encode()
    return child.ask("backbones.trial", header, content, child.GIGABYTE)


def test_a_sound_graph_is_run_and_one_that_ends_mxnet_is_a_reason() -> None:
    """The table of operators has refused the second before."""
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(3, 3), num_filter=4, no_bias=True)
    x = mx.sym.LeakyReLU(mx.sym.BatchNorm(x), act_type="prelu")
    assert tried(mx.sym.Reshape(mx.sym.L2Normalization(x, mode="channel"), shape=(0, -1))) is None
    flat = mx.sym.Reshape(mx.sym.var("data"), shape=(-4, 0, -1))
    assert tried(flat) == "it ends the process that tries it out (SIGFPE)"
