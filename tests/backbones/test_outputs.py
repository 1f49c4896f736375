"""Every output and network of InsightFace's: names, sizes, a step, export and reload."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import pytest

import backbones
from backbones import outputs
from backbones.graph import gpu
from backbones.graph.nodes import to_json
from backbones.maps import OUTPUTS, Maps
from backbones.model import Backbone
from backbones.options import BackboneOptions
from runtime.errors import ConfigError
from runtime.mxnet import mx

# What get_symbol of recognition/partial_fc/mxnet/symbol/resnet.py (InsightFace, 2022) makes of
# net_se, num_layers, net_output and embedding_size: parameters, and the checksum of names and
# shapes of all tensors, with those of running statistics, sorted.
ORIGINALS = [
    ("r49", "FC", 512, 43590848, 2928188999),
    ("r99", "FC", 512, 69584320, 791769390),
    ("r101", "FC", 512, 54223808, 2401460354),
    ("r152", "FC", 512, 70765760, 3881673398),
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


def make(network: str = "tiny", output: str = "E", **more: Any) -> Backbone:
    options = BackboneOptions(network=network, net_output=output, embedding_size=16, **more)
    return Backbone.create(options, seed=5)


def step(backbone: Backbone, images, update: int = 0, rank: int = 0) -> dict[str, np.ndarray]:
    """The gradients of a training step, and its features as ``features``."""
    backbone.begin_update(update, rank)
    with mx.autograd.record():
        features = backbone(mx.nd.array(images))
    direction = np.random.default_rng(1).standard_normal(features.shape)
    backbone.backward(features, mx.nd.array(direction))
    found = {
        name: parameter.grad().asnumpy()
        for name, parameter in backbone.parameters.items()
        if parameter.grad_req != "null"
    }
    return {**found, "features": features.asnumpy()}


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


@pytest.mark.parametrize(
    ("network", "output"),
    [
        *(("tiny", output) for output in OUTPUTS),
        *(("r101", "GNAP"), ("r50-se", "E")),
    ],
)
def test_a_step_export_and_reload(network: str, output: str, images, tmp_path) -> None:
    images = images if network == "tiny" else images[:2]
    backbone = make(network, output)
    gradients = step(backbone, images)
    assert all(np.isfinite(array).all() for array in gradients.values())
    assert np.abs(gradients["conv0_weight"]).max() > 0
    backbone.export(tmp_path / "model")
    expected = backbone.extract(images)
    # Squeeze and excitation without training makes much of rounding: so much as a millionth of
    # the pixels' values changes is what other operators may change.
    rounded = backbone(mx.nd.array(images * np.float32(1 + 1e-6))).asnumpy()
    allowed = max(1e-5 * np.abs(expected).max(), 4 * np.abs(rounded - expected).max())

    np.testing.assert_array_equal(Backbone.load(tmp_path / "model").extract(images), expected)
    symbol, arguments, auxiliary = mx.model.load_checkpoint(str(tmp_path / "model"), 0)
    module = mx.mod.Module(symbol, data_names=["data"], label_names=None)
    module.bind([("data", images.shape)], for_training=False)
    module.set_params(arguments, auxiliary)
    module.forward(mx.io.DataBatch([mx.nd.array(images)]), is_train=False)
    np.testing.assert_allclose(module.get_outputs()[0].asnumpy(), expected, atol=allowed)
    block = mx.gluon.SymbolBlock.imports(
        f"{tmp_path}/model-symbol.json", ["data"], f"{tmp_path}/model-0000.params"
    )
    np.testing.assert_allclose(block(mx.nd.array(images)).asnumpy(), expected, atol=allowed)
    again = make(network, output, pretrained=f"{tmp_path}/model,0")
    np.testing.assert_array_equal(again.extract(images), expected)


@pytest.mark.parametrize(("network", "output"), [("tiny", "GNAP"), ("r18", "E"), ("mbf", "F")])
def test_a_step_in_parts_is_that_of_the_whole_graph(network, output, images) -> None:
    whole = make(network, output)
    whole.hybridize()
    expected = step(whole, images[:2], update=3)
    for name, array in in_parts(network, output, images[:2]).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_a_step_with_excitation_in_parts_differs_by_rounding(images) -> None:
    whole = make("r18-se", "GNAP")
    whole.hybridize()
    expected = step(whole, images[:2], update=3)
    found = in_parts("r18-se", "GNAP", images[:2])
    np.testing.assert_allclose(found["features"], expected["features"], rtol=1e-3, atol=1e-3)
    distance = sum(float(((found[name] - expected[name]) ** 2).sum()) for name in expected)
    assert distance < 1e-6 * sum(float((array**2).sum()) for array in expected.values())


def in_parts(network: str, output: str, images) -> dict[str, np.ndarray]:
    parts = make(network, output, recompute=True)
    assert len(parts._training_pass._second_runs) > 2
    return step(parts, images, update=3)


def test_dropout_is_part_of_the_last_part_and_so_drawn_once() -> None:
    data = mx.sym.var("data")
    maps = data
    for number in range(4):
        maps = mx.sym.Convolution(
            maps, num_filter=4, kernel=(1, 1), no_bias=True, name=f"conv{number}"
        )
        if number == 1:
            maps = mx.sym.Dropout(maps, p=0.4, name="dropped")
    parts = backbones.graph.recompute.cut(maps, (8, 8))
    assert [part.source for part in parts] == ["data", "conv1"]
    assert "dropped_output" in parts[-1].symbol.get_internals().list_outputs()


def test_dropout_depends_on_seed_update_and_rank_alone(images) -> None:
    backbone = make()
    features = [step(backbone, images, update, rank)["features"] for update, rank in
                ((0, 0), (1, 0), (0, 1), (0, 0))]  # fmt: skip
    assert np.array_equal(features[0], features[3])
    assert not np.array_equal(features[0], features[1])
    assert not np.array_equal(features[0], features[2])
    assert np.array_equal(step(make(), images, 1, 0)["features"], features[1])


@pytest.mark.parametrize(("output", "share"), [("E", 0.4), ("FC", 0.0)])
def test_e_drops_two_fifths_of_the_maps(output: str, share: float) -> None:
    with mx.name.NameManager():
        symbol = outputs.embedding(mx.sym.var("data"), output, Maps(64, 8), size=4, dtype="float32")
    maps = symbol.get_internals()["pre_fc1_output"].get_children()[0]
    executor = maps.simple_bind(mx.cpu(), data=(8, 64, 8, 8))
    executor.copy_params_from(
        {"bn1_gamma": mx.nd.ones(64), "bn1_beta": mx.nd.zeros(64)}, allow_extra_params=True
    )
    images = mx.nd.array(GENERATOR.standard_normal((8, 64, 8, 8)))
    dropped = executor.forward(is_train=True, data=images)[0].asnumpy() == 0
    assert dropped.mean() == pytest.approx(share, abs=0.02)
    assert not (executor.forward(is_train=False, data=images)[0].asnumpy() == 0).any()


def test_a_gpu_takes_the_dropout_that_follows_the_seed() -> None:
    nodes = to_json(gpu.rewrite(backbones.build("tiny", output="E")))["nodes"]
    (dropout,) = [node for node in nodes if node["op"] == "Dropout"]
    assert dropout["attrs"] == {"p": "0.4", "cudnn_off": "True"}


def test_gnap_gives_every_position_the_mean_norm() -> None:
    maps = GENERATOR.standard_normal((3, 6, 2, 2)).astype(np.float32)
    symbol = outputs.embedding(mx.sym.var("data"), "GNAP", Maps(6, 2), size=6, dtype="float32")
    arguments, _, statistics = symbol.infer_shape(data=maps.shape)
    arrays = {
        name: mx.nd.ones(shape) if name.endswith("gamma") else mx.nd.zeros(shape)
        for name, shape in zip(symbol.list_arguments(), arguments)
    }
    arrays["data"] = mx.nd.array(maps)
    auxiliary = {
        name: mx.nd.ones(shape) if name.endswith("var") else mx.nd.zeros(shape)
        for name, shape in zip(symbol.list_auxiliary_states(), statistics)
    }
    found = symbol.bind(mx.cpu(), arrays, aux_states=auxiliary).forward()[0].asnumpy()
    normed = maps / np.sqrt(1 + 2e-5)
    norms = np.linalg.norm(normed, axis=1, keepdims=True)
    expected = (normed / norms * norms.mean()).mean((2, 3)) / np.sqrt(1 + 2e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("network", ["r18-se", "mbf", "tiny"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_float16_keeps_the_end_in_float32(network: str, output: str) -> None:
    symbol = backbones.build(network, dtype="float16", output=output)
    arguments, found, statistics = symbol.infer_type(data="float32")
    types = dict(zip(symbol.list_arguments(), arguments))
    assert {*found, *statistics} == {np.float32}
    assert types["conv0_weight" if network != "mbf" else "conv_1_conv2d_weight"] == np.float16
    own = [name for name in types if name.startswith("fc1_")]
    assert {types[name] for name in own} == {np.float32}


def test_excitation_weighs_channels_by_their_means() -> None:
    """With second weights of zero the sigmoid of the bias remains."""
    x = GENERATOR.standard_normal((2, 32, 4, 4)).astype(np.float32)
    symbol = backbones.iresnet.squeeze_and_excitation(mx.sym.var("data"), "se", 32)
    shapes, _, _ = symbol.infer_shape(data=x.shape)
    arrays = {name: mx.nd.zeros(shape) for name, shape in zip(symbol.list_arguments(), shapes)}
    bias = np.linspace(-2, 2, 32, dtype=np.float32)
    arrays.update({"data": mx.nd.array(x), "se_conv2_bias": mx.nd.array(bias)})
    found = symbol.bind(mx.cpu(), arrays).forward()[0].asnumpy()
    np.testing.assert_allclose(found, x / (1 + np.exp(-bias[:, None, None])), rtol=1e-5)


def test_an_unknown_output_is_one_line() -> None:
    with pytest.raises(ConfigError, match="--net-output 'GNP' is unknown .did you mean 'GNAP'"):
        BackboneOptions(net_output="GNP").check()


def test_the_own_output_is_no_other() -> None:
    assert BackboneOptions(network="r50", net_output="FC").other_output is None
    assert BackboneOptions(network="mbf", net_output="FC").other_output == "FC"
    own, given = (backbones.build("mbf", output=output).tojson() for output in (None, "GDC"))
    assert own == given
