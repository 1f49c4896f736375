"""Small graphs that ask for much: refused before anything is allocated or computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backbones.graph import limits
from backbones.graph.symbol_file import infer_shapes, read_graph
from runtime.errors import DataError
from runtime.mxnet import mx

DATA = mx.sym.var("data")


def shapes_of(folder: Path, maps: Any, hidden: int = 8, channels: int = 3) -> Any:
    path = folder / "model-symbol.json"
    mx.sym.FullyConnected(maps, num_hidden=hidden, name="fc1").save(str(path))
    assert path.stat().st_size < 20_000
    return infer_shapes(read_graph(path), (112, 112), path, channels)


def test_parameters_of_gigabytes_are_refused(tmp_path: Path) -> None:
    assert shapes_of(tmp_path, DATA, hidden=7000)["fc1_weight"] == (7000, 37632)
    for hidden in (7200, 131072):
        with pytest.raises(DataError, match="more than 268,435,456 parameters"):
            shapes_of(tmp_path, DATA, hidden=hidden)


def test_results_of_gigabytes_are_refused(tmp_path: Path) -> None:
    maps = mx.sym.Pooling(DATA, kernel=(2, 2), stride=(2, 2), pool_type="avg")
    tiled = mx.sym.tile(mx.sym.mean(maps, axis=1, keepdims=True), reps=(1, 50_000, 1, 1))
    x = mx.sym.Convolution(DATA, kernel=(1, 1), num_filter=512, no_bias=True)
    # Each is 6,422,528 elements; those of a chain are needed by two at a time.
    chain = x
    for _ in range(20):
        chain = mx.sym.relu(chain)
    assert shapes_of(tmp_path, mx.sym.mean(chain, axis=1))
    for many in (tiled, mx.sym.add_n(*(mx.sym.relu(x) for _ in range(11)))):
        with pytest.raises(DataError, match="results of more than 67,108,864 elements"):
            shapes_of(tmp_path, mx.sym.mean(many, axis=1))


def test_multiplications_of_minutes_are_refused() -> None:
    """A weight that many layers share is small."""

    def infer(maps: Any) -> Any:
        symbol = mx.sym.FullyConnected(mx.sym.mean(maps, axis=1), num_hidden=8, name="fc1")
        return limits.infer(symbol, (1, 3, 112, 112), Path("m"))

    weight, sizes = mx.sym.var("shared"), {"kernel": (1, 1), "num_filter": 8192, "no_bias": True}
    x = mx.sym.Pooling(DATA, kernel=(4, 4), stride=(4, 4), pool_type="max")
    x = mx.sym.Convolution(x, name="first", **sizes)
    for number in range(4):
        x = mx.sym.Convolution(x, weight, name=f"c{number}", **sizes)
    assert infer(mx.sym.Convolution(x, weight, name="c4", **sizes))
    twice = mx.sym.Convolution(mx.sym.Convolution(x, weight, name="c4", **sizes), weight, **sizes)
    # Those of groups of channels, and of pooling, count as 16.
    grouped = mx.sym.Convolution(x, num_group=8, **sizes)
    pooled = mx.sym.Pooling(x, kernel=(27, 27), pad=(13, 13), pool_type="max")
    for maps in (twice, grouped, pooled):
        with pytest.raises(DataError, match="more than 274,877,906,944 multiplications"):
            infer(maps)


def test_a_global_kernel_has_the_dimensions_of_its_maps(tmp_path: Path) -> None:
    row = mx.sym.min(DATA, axis=2)
    pooled = mx.sym.Pooling(row, kernel=(2, 2), pad=(0, 1), global_pool=True, name="pool")
    with pytest.raises(DataError, match="'pool' pools 3 dimensions with a kernel of 2"):
        shapes_of(tmp_path, pooled)


@pytest.mark.parametrize("channels", [0, -1, 5000, 1 << 40])
def test_images_of_many_channels_are_refused(tmp_path: Path, channels: int) -> None:
    with pytest.raises(DataError, match="takes images of .* channels"):
        shapes_of(tmp_path, DATA, channels=channels)
