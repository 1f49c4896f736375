from __future__ import annotations

import json
import subprocess
import sys
import zlib

import numpy as np
import pytest

import backbones
from backbones import layers
from backbones.graph.nodes import infer
from backbones.graph.recompute import cut
from backbones.model import Backbone
from backbones.sizes import OUTPUTS
from runtime.errors import ConfigError
from runtime.mxnet import mx
from tests.support.graphs import fingerprint

# Of the graphs with embeddings of 512, so that checkpoints of today are networks of tomorrow: of
# all iResNets together, and of the others.
FINGERPRINTS = {
    "r18 to r269": 366520557,
    "r18-se to r269-se": 681434952,
    "mbf": 1600664052,
    "tiny": 1311149337,
}

# The sizes of all iResNets are made by one rule.
SIZED = [name for name in backbones.names() if not name.endswith("-se")] + ["r18-se", "r101-se"]


def test_unknown_names_are_refused_in_one_line() -> None:
    for call in (backbones.check, backbones.own_output, backbones.build):
        with pytest.raises(ConfigError, match="'mbff' is unknown .did you mean 'mbf'") as caught:
            call("mbff")
        assert "\n" not in str(caught.value)


def test_registry_does_not_load_mxnet() -> None:
    program = (
        "import sys, backbones; from backbones import classifiers; backbones.check('r50');"
        "classifiers.check('resnet50_v1'); sys.exit('mxnet' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize("embedding_size", [512, 100])
def test_parameter_count_is_that_of_the_graph(name, embedding_size, tensor_shapes) -> None:
    shapes = tensor_shapes(backbones.build(name, embedding_size=embedding_size))
    counted = sum(int(np.prod(shape)) for shape in shapes.values())
    assert backbones.parameter_count(name, embedding_size) == counted


@pytest.mark.parametrize("name", SIZED)
def test_activations_are_those_of_the_graph(name) -> None:
    """The dry run's memory: what the operators put out, times what a step was measured to keep."""
    internals = backbones.build(name).get_internals()
    variables = {*internals.list_arguments(), *internals.list_auxiliary_states()}
    _, shapes, _ = internals.infer_shape(data=(1, 3, 112, 112))
    outputs = dict(zip(internals.list_outputs(), shapes))
    counted = sum(int(np.prod(shape)) for key, shape in outputs.items() if key not in variables)
    kept = backbones._ARCHITECTURES[name].kept
    assert backbones.activation_bytes(name, 3) == round(3 * 4 * (counted * kept))


@pytest.mark.parametrize("name", SIZED)
def test_activations_of_parts_are_those_of_the_graph(name) -> None:
    symbol = backbones.build(name)
    internals = symbol.get_internals()
    _, shapes, _ = internals.infer_shape(data=(1, 3, 112, 112))
    sizes = {key: int(np.prod(shape)) for key, shape in zip(internals.list_outputs(), shapes)}
    parts = cut(symbol, (112, 112))
    largest = 0
    for part in parts:
        names = part.symbol.get_internals().list_outputs()
        variables = set(part.symbol.list_inputs())
        largest = max(largest, sum(sizes[key] for key in names if key not in variables))
    between = sum(sizes[f"{part.source}_output"] for part in parts[1:])
    architecture = backbones._ARCHITECTURES[name]
    assert (architecture.part_outputs, architecture.between_parts) == (largest, between)


def test_graphs_are_those_of_earlier_checkpoints() -> None:
    """Whatever was built before."""
    found = {name: fingerprint(backbones.build(name)) for name in backbones.names()}
    plain = [found.pop(name) for name in [*found] if name[0] == "r" and name[-3:] != "-se"]
    excited = [found.pop(name) for name in [*found] if name[-3:] == "-se"]
    numbers = (zlib.crc32(json.dumps(together).encode()) for together in (plain, excited))
    assert {**dict(zip(FINGERPRINTS, numbers)), **found} == FINGERPRINTS


def test_pixels_are_normalized_in_the_graph() -> None:
    result = layers.pixels("float32").eval(ctx=mx.cpu(), data=mx.nd.array([0, 127.5, 255]))[0]
    np.testing.assert_array_equal(result.asnumpy(), [-127.5 / 128, 0, 127.5 / 128])


def test_published_weights_fit_and_give_the_same_embeddings(toolkit_data, tmp_path, images) -> None:
    prefix = toolkit_data / "mobilefacenet_y1" / "model"
    weights = mx.nd.load(f"{prefix}-0000.params")
    weights["arg:pre_fc1_weight"] = weights.pop("arg:fc1_weight")
    backbones.build("mbf", embedding_size=128).save(str(tmp_path / "mbf-symbol.json"))
    mx.nd.save(str(tmp_path / "mbf-0000.params"), weights)
    created = Backbone.load(tmp_path / "mbf").extract(images)
    loaded = Backbone.load(prefix).extract(images)
    np.testing.assert_allclose(created, loaded, atol=1e-5)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", ["mbf", "tiny", "r18", "r34-se"])
def test_a_graph_runs_from_pixels_to_fc1_for_the_images_that_are_allowed(name, output) -> None:
    graph = backbones.build(name, embedding_size=8, output=output)
    assert graph.list_outputs() == ["fc1_output"]
    for size in ((112, 96), (96, 112), (97, 97), (97, 96), (112, 112), (128, 160), (32, 32)):
        try:
            assert infer(graph, (2, 3, *size))[1] == [(2, 8)]
        except mx.MXNetError:
            assert output == "GDC"
            said = f"--network {name} cannot take images of {size[0]} x {size[1]}: its last maps.*"
            with pytest.raises(ConfigError, match=said + "97 x 97 or larger"):
                backbones.check_image_size(name, size, output)
        else:
            backbones.check_image_size(name, size, output)


def test_a_network_has_an_output_of_its_own() -> None:
    with pytest.raises(ConfigError, match="are 7 x 6 then, and its output GDC weighs 7 x 7"):
        backbones.check_image_size("mbf", (112, 96))
    backbones.check_image_size("mbf", (112, 96), "FC")
    backbones.check_image_size("r50", (112, 96))
    own, given = (backbones.build("mbf", output=output).tojson() for output in (None, "GDC"))
    assert own == given
