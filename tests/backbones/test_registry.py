from __future__ import annotations

import json
import zlib

import numpy as np
import pytest

import backbones
from backbones.graph.nodes import infer
from backbones.model import Backbone
from backbones.options import OUTPUTS
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


def test_unknown_names_are_refused_in_one_line() -> None:
    for call in (backbones.check, backbones.own_output, backbones.build):
        with pytest.raises(ConfigError, match="'mbff' is unknown .did you mean 'mbf'") as caught:
            call("mbff")
        assert "\n" not in str(caught.value)


def test_graphs_are_those_of_earlier_checkpoints() -> None:
    """Whatever was built before."""
    found = {name: fingerprint(backbones.build(name)) for name in backbones.names()}
    plain = [found.pop(name) for name in [*found] if name[0] == "r" and name[-3:] != "-se"]
    excited = [found.pop(name) for name in [*found] if name[-3:] == "-se"]
    numbers = (zlib.crc32(json.dumps(together).encode()) for together in (plain, excited))
    assert {**dict(zip(FINGERPRINTS, numbers)), **found} == FINGERPRINTS


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
@pytest.mark.parametrize("name", ["mbf", "tiny", "r18-se"])
def test_a_graph_runs_from_pixels_to_fc1_for_the_images_that_are_allowed(name, output) -> None:
    graph = backbones.build(name, embedding_size=8, output=output)
    assert graph.list_outputs() == ["fc1_output"]
    for size in ((96, 112), (97, 97), (97, 96), (128, 160), (32, 32)):
        try:
            assert infer(graph, (2, 3, *size))[1] == [(2, 8)]
        except mx.MXNetError:
            assert output == "GDC"
            said = f"--network {name} cannot take images of {size[0]} x {size[1]}: its last maps.*"
            with pytest.raises(ConfigError, match=said + "97 x 97 or larger"):
                backbones.check_image_size(name, size, output)
        else:
            backbones.check_image_size(name, size, output)
    # A network has an output of its own.
    if name == "mbf":
        with pytest.raises(ConfigError, match="are 7 x 6 then, and its output GDC weighs 7 x 7"):
            backbones.check_image_size("mbf", (112, 96))
        own = backbones.build("mbf", embedding_size=8).tojson()
        assert (own == graph.tojson()) == (output == "GDC")
