"""Small graphs that ask for much: refused before anything is allocated or computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backbones.graph.symbol_file import infer_shapes, read_graph
from runtime.errors import DataError
from runtime.mxnet import mx


def shapes_of(folder: Path, maps: Any, size: tuple[int, int] = (112, 112), hidden: int = 8) -> Any:
    path = folder / "model-symbol.json"
    mx.sym.FullyConnected(maps, num_hidden=hidden, name="fc1").save(str(path))
    assert path.stat().st_size < 20_000
    return infer_shapes(read_graph(path), size, path)


def test_parameters_of_gigabytes_are_refused(tmp_path: Path) -> None:
    data = mx.sym.var("data")
    assert shapes_of(tmp_path, data, hidden=7000)["fc1_weight"] == (7000, 37632)
    with pytest.raises(DataError, match="more than 268,435,456 parameters"):
        shapes_of(tmp_path, data, hidden=7200)
    with pytest.raises(DataError, match="more than 268,435,456 parameters"):
        shapes_of(tmp_path, data, hidden=131072)


def test_results_of_gigabytes_are_refused(tmp_path: Path) -> None:
    data = mx.sym.Pooling(mx.sym.var("data"), kernel=(2, 2), stride=(2, 2), pool_type="avg")
    for repeats in (50_000, 131_072):
        tiled = mx.sym.tile(mx.sym.mean(data, axis=1, keepdims=True), reps=(1, repeats, 1, 1))
        with pytest.raises(DataError, match="results of more than 67,108,864 elements"):
            shapes_of(tmp_path, mx.sym.mean(tiled, axis=1))


def test_results_are_counted_that_are_needed_at_a_time(tmp_path: Path) -> None:
    x = mx.sym.Convolution(mx.sym.var("data"), kernel=(1, 1), num_filter=512, no_bias=True)
    # Each is 6,422,528 elements.
    chain = x
    for _ in range(20):
        chain = mx.sym.relu(chain)
    assert shapes_of(tmp_path, mx.sym.mean(chain, axis=1))
    kept = [mx.sym.relu(x) for _ in range(11)]
    with pytest.raises(DataError, match="results of more than 67,108,864 elements"):
        shapes_of(tmp_path, mx.sym.mean(mx.sym.add_n(*kept), axis=1))


def test_multiplications_of_minutes_are_refused(tmp_path: Path) -> None:
    """A weight that many layers share is small."""
    weight = mx.sym.var("shared")
    x = mx.sym.Pooling(mx.sym.var("data"), kernel=(4, 4), stride=(4, 4), pool_type="max")
    x = mx.sym.Convolution(x, kernel=(1, 1), num_filter=8192, no_bias=True, name="first")
    for number in range(6):
        assert shapes_of(tmp_path, mx.sym.mean(x, axis=1)) if number < 5 else True
        x = mx.sym.Convolution(
            x, weight, kernel=(1, 1), num_filter=8192, no_bias=True, name=f"c{number}"
        )
    with pytest.raises(DataError, match="more than 274,877,906,944 multiplications"):
        shapes_of(tmp_path, mx.sym.mean(x, axis=1))


def test_a_global_kernel_has_the_dimensions_of_its_maps(tmp_path: Path) -> None:
    row = mx.sym.min(mx.sym.var("data"), axis=2)
    pooled = mx.sym.Pooling(row, kernel=(2, 2), pad=(0, 1), global_pool=True, name="pool")
    with pytest.raises(DataError, match="'pool' pools 3 dimensions with a kernel of 2"):
        shapes_of(tmp_path, pooled)


@pytest.mark.parametrize("channels", [0, -1, 5000, 1 << 40])
def test_images_of_many_channels_are_refused(tmp_path: Path, channels: int) -> None:
    path = tmp_path / "model-symbol.json"
    mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8, name="fc1").save(str(path))
    with pytest.raises(DataError, match="takes images of .* channels"):
        infer_shapes(read_graph(path), (4, 4), path, channels)
