from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import backbones
from backbones.graph.nodes import infer
from backbones.maps import OUTPUTS
from runtime.errors import ConfigError
from runtime.mxnet import mx
from tests.support.graphs import fingerprint

# Of the graphs with embeddings of 512, so that checkpoints of today are networks of tomorrow.
FINGERPRINTS = {
    "r18": 1621955682,
    "r34": 2909665660,
    "r49": 3349427026,
    "r50": 3349427026,
    "r74": 3082753770,
    "r90": 1399533241,
    "r98": 1753274035,
    "r99": 712249743,
    "r100": 2318785833,
    "r101": 452430764,
    "r124": 3194622423,
    "r134": 3758964587,
    "r136": 562699784,
    "r140": 1378117532,
    "r152": 599537324,
    "r160": 1619162303,
    "r200": 1734920766,
    "r269": 2985954331,
    "r18-se": 642200535,
    "r34-se": 1847717802,
    "r49-se": 3818339062,
    "r50-se": 3818339062,
    "r74-se": 4207363539,
    "r90-se": 443238820,
    "r98-se": 4278388856,
    "r99-se": 915220879,
    "r100-se": 3728131133,
    "r101-se": 1354415367,
    "r124-se": 1829306644,
    "r134-se": 121000455,
    "r136-se": 2216060246,
    "r140-se": 1533737416,
    "r152-se": 3148243728,
    "r160-se": 4162803474,
    "r200-se": 3909895496,
    "r269-se": 1220403247,
    "mbf": 1600664052,
    "tiny": 1311149337,
}



def test_unknown_names_get_the_closest_one() -> None:
    with pytest.raises(ConfigError, match=r"network 'mbff' is unknown \(did you mean 'mbf'\?\)"):
        backbones.check("mbff")
    with pytest.raises(ConfigError, match="r97"):
        backbones.build("r97")


def test_the_error_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        backbones.check("resnet50")
    assert "\n" not in str(caught.value)


def test_every_name_passes_the_check() -> None:
    assert {"r18", "r34", "r50", "r74", "r90", "r100", "r124", "r200", "mbf", "tiny"} <= set(
        backbones.names()
    )
    for name in backbones.names():
        backbones.check(name)


def test_registry_does_not_load_mxnet() -> None:
    program = (
        "import sys, backbones; backbones.check('r50');"
        "sys.exit('mxnet' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "embedding_size", "millions"),
    [
        ("r18", 512, 24.03),
        ("r34", 512, 34.14),
        ("r50", 512, 43.59),
        ("r100", 512, 65.16),
        ("mbf", 128, 1.00),
    ],
)
def test_published_sizes(name: str, embedding_size: int, millions: float) -> None:
    assert round(backbones.parameter_count(name, embedding_size) / 1e6, 2) == millions


def test_equal_names_whatever_was_built_before() -> None:
    first = backbones.build("tiny")
    backbones.build("r18")
    assert backbones.build("tiny").tojson() == first.tojson()


@pytest.mark.parametrize("name", ["r18", "mbf", "tiny"])
def test_graph_runs_from_pixels_to_fc1(name: str) -> None:
    symbol = backbones.build(name, embedding_size=64)
    assert symbol.list_outputs() == ["fc1_output"]
    _, outputs, _ = symbol.infer_shape(data=(2, 3, 112, 112))
    assert outputs == [(2, 64)]


def test_graphs_are_those_of_earlier_checkpoints() -> None:
    found = {name: fingerprint(backbones.build(name)) for name in backbones.names()}
    assert found == FINGERPRINTS


@pytest.mark.parametrize("name", ["r18", "mbf", "tiny"])
def test_float16_computes_the_body_only(name: str) -> None:
    symbol = backbones.build(name, dtype="float16")
    arguments, outputs, statistics = symbol.infer_type(data="float32")
    types = dict(zip(symbol.list_arguments(), arguments))
    weights = {key: kind for key, kind in types.items() if key.endswith("_weight")}
    assert set(weights.values()) == {np.float16}
    assert {types["data"], types["fc1_beta"], *outputs, *statistics} == {np.float32}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", ["mbf", "tiny", "r18", "r34-se"])
def test_images_that_a_network_takes_are_those_that_its_graph_takes(name: str, output: str) -> None:
    graph = backbones.build(name, embedding_size=8, output=output)
    for size in ((112, 96), (96, 112), (97, 97), (97, 96), (112, 112), (128, 160), (32, 32)):
        try:
            infer(graph, (1, 3, *size))
            fits = True
        except mx.MXNetError:
            fits = False
        if fits:
            backbones.check_image_size(name, size, output)
            continue
        with pytest.raises(ConfigError) as failure:
            backbones.check_image_size(name, size, output)
        said = f"--network {name} cannot take images of {size[0]} x {size[1]}: its last maps"
        assert said in str(failure.value) and "97 x 97 or larger" in str(failure.value)
        assert output == "GDC"


def test_a_network_without_an_output_of_its_own_has_a_size_too() -> None:
    with pytest.raises(ConfigError, match="are 7 x 6 then, and its output GDC weighs 7 x 7"):
        backbones.check_image_size("mbf", (112, 96))
    backbones.check_image_size("mbf", (112, 96), "FC")
    backbones.check_image_size("r50", (112, 96))
