"""Graphs of checkpoints: what read_graph lets pass has shapes for every batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from backbones.graph_file import infer_shapes, read_graph
from runtime.errors import DataError
from runtime.mxnet import mx


def write(folder: Path, shape: tuple[int, ...]) -> Path:
    flat = mx.sym.reshape(mx.sym.var("data"), shape=shape, name="flat")
    path = folder / "model-symbol.json"
    mx.sym.FullyConnected(flat, num_hidden=8, name="fc1").save(str(path))
    return path


def test_shapes_of_the_parameters(tmp_path: Path) -> None:
    path = write(tmp_path, (0, -1))
    shapes = infer_shapes(read_graph(path), (4, 4), path)
    assert shapes == {"fc1_weight": (8, 48), "fc1_bias": (8,)}


def test_a_graph_for_one_image_alone_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, (1, -1))
    with pytest.raises(DataError, match="for one size of batch alone"):
        infer_shapes(read_graph(path), (4, 4), path)
