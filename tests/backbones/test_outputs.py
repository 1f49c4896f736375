from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

import backbones
from backbones import outputs
from backbones.model import Backbone
from backbones.options import OUTPUTS
from runtime.mxnet import mx
from tests.backbones.passes import create, train
from tests.support.graphs import fingerprint

# What get_symbol of recognition/partial_fc/mxnet/symbol/resnet.py (InsightFace, 2022) makes of
# net_se, num_layers, net_output and embedding_size: parameters, and the checksum of names and
# shapes of all tensors, with those of running statistics, sorted.
ORIGINALS = [
    ("r49", "FC", 512, 43590848, 2928188999),
    ("r269", "FC", 512, 115061696, 1279929253),
    ("r50-se", "FC", 512, 43820120, 3842001342),
    ("r101-se", "E", 256, 48106104, 3262874395),
    ("r18", "E", 512, 24025600, 3230766349),
    ("r18", "F", 512, 24024576, 3808881458),
    ("r18", "FC", 512, 24025600, 3230766349),
    ("r18", "J", 512, 24024576, 1783527423),
    ("r18", "GAP", 512, 11443200, 2111188099),
    ("r18", "GDC", 512, 11467776, 208133366),
    ("r18", "GNAP", 512, 11180032, 3562280059),
    ("r18", "GNAP", 256, 11311872, 2176117404),
    ("r18", "GNAP", 1024, 11709440, 1724990836),
]
GENERATOR = np.random.default_rng(3)


@pytest.mark.parametrize(("network", "output", "size", "parameters", "names"), ORIGINALS)
def test_names_and_sizes_are_those_of_the_original(
    network: str, output: str, size: int, parameters: int, names: int
) -> None:
    symbol = backbones.build(network, embedding_size=size, output=output)
    arguments, _, statistics = symbol.infer_shape(data=(2, 3, 112, 112))
    keys = symbol.list_arguments() + symbol.list_auxiliary_states()
    shapes = dict(zip(keys, arguments + statistics))
    del shapes["data"]
    listed = sorted([name, [int(number) for number in shape]] for name, shape in shapes.items())
    assert zlib.crc32(json.dumps(listed).encode()) == names
    assert backbones.parameter_count(network, size, output) == parameters


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_step_export_and_reload(output: str, images: np.ndarray, tmp_path: Path) -> None:
    backbone, images = create(net_output=output), images[:2]
    found = train(backbone, images, updates=1)
    assert all(np.isfinite(array).all() for array in found.values())
    assert np.abs(found["conv0_weight"]).max() > 0
    backbone.export(tmp_path / "model")
    expected = backbone.extract(images)
    np.testing.assert_array_equal(Backbone.load(tmp_path / "model").extract(images), expected)
    again = create(net_output=output, pretrained=f"{tmp_path}/model,0")
    np.testing.assert_array_equal(again.extract(images), expected)


def test_dropout_depends_on_seed_update_and_rank_alone(images: np.ndarray) -> None:
    def features(backbone: Backbone, update: int, rank: int) -> np.ndarray:
        backbone.begin_update(update, rank)
        with mx.autograd.record():
            found: np.ndarray = backbone(mx.nd.array(images)).asnumpy()
        return found

    backbone = create(net_output="E")
    plain = features(backbone, 0, 0)
    assert not np.array_equal(features(backbone, 1, 0), plain)
    assert not np.array_equal(features(backbone, 0, 1), plain)
    assert np.array_equal(features(backbone, 0, 0), plain)
    assert np.array_equal(features(create(net_output="E"), 0, 0), plain)


def test_gnap_gives_every_position_the_mean_norm() -> None:
    maps = GENERATOR.standard_normal((3, 6, 2, 2)).astype(np.float32)
    symbol = outputs.embedding(mx.sym.var("data"), "GNAP", (6, 2), size=6, dtype="float32")
    executor = symbol.simple_bind(mx.cpu(), data=maps.shape)
    for name, array in [*executor.arg_dict.items(), *executor.aux_dict.items()]:
        array[:] = float(name.endswith(("gamma", "var")))
    found = executor.forward(data=mx.nd.array(maps))[0].asnumpy()
    normed = maps / np.sqrt(1 + 2e-5)
    norms = np.linalg.norm(normed, axis=1, keepdims=True)
    expected = (normed / norms * norms.mean()).mean((2, 3)) / np.sqrt(1 + 2e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_graphs_are_those_of_earlier_checkpoints_and_float16_keeps_the_end_in_float32() -> None:
    found = [fingerprint(backbones.build("tiny", output=output)) for output in sorted(OUTPUTS)]
    assert zlib.crc32(json.dumps(found).encode()) == 465332266
    chosen = [("r18-se", "GNAP"), ("mbf", "GDC"), *(("tiny", output) for output in OUTPUTS)]
    for network, output in chosen:
        symbol = backbones.build(network, dtype="float16", output=output)
        arguments, types, statistics = symbol.infer_type(data="float32")
        assert {*types, *statistics} == {np.float32}
        for name, kind in zip(symbol.list_arguments(), arguments):
            is_end = name.startswith("fc1_") or name == "data"
            if is_end or (name.endswith("_weight") and output != "GNAP"):
                assert kind == (np.float32 if is_end else np.float16), (output, name)
