"""Networks, their outputs, options and weights, and checkpoints, also those of classifiers."""

import errno
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backbones
from backbones.checkpoint import read_checkpoint
from backbones.model import Backbone
from backbones.options import OUTPUTS, BackboneOptions, ClassifierOptions, split_checkpoint
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from runtime.state import OWN, REPLICATED
from runtime.untrusted.parameter_file import read_parameters
from tests.backbones.passes import IMAGES, assert_same, classifier, create, train, values
from tests.support.graphs import fingerprint
from training.config import faces

# Checkpoints of today are networks of tomorrow.
FINGERPRINTS = {"r18 to r269": 366520557, "r18-se to r269-se": 681434952}
FINGERPRINTS |= {"mbf": 1600664052, "tiny": 1311149337}


def parsed(network: str) -> Any:
    return faces.parse(["--dataset", "synthetic", "--network", network])


def test_unknown_names_are_refused_in_one_line() -> None:
    for call in (backbones.check, backbones.own_output, backbones.build, parsed):
        with pytest.raises(ConfigError, match="'mbff' is unknown .did you mean 'mbf'") as caught:
            call("mbff")
        assert "\n" not in str(caught.value)


def test_graphs_are_those_of_earlier_checkpoints() -> None:
    found = {name: fingerprint(backbones.build(name)) for name in backbones.names()}
    plain = [found.pop(name) for name in [*found] if name[0] == "r" and name[-3:] != "-se"]
    excited = [found.pop(name) for name in [*found] if name[-3:] == "-se"]
    numbers = (zlib.crc32(json.dumps(together).encode()) for together in (plain, excited))
    assert {**dict(zip(FINGERPRINTS, numbers)), **found} == FINGERPRINTS


def test_published_weights_fit_and_give_the_same_embeddings(toolkit_data, tmp_path) -> None:
    prefix = toolkit_data / "mobilefacenet_y1" / "model"
    weights = mx.nd.load(f"{prefix}-0000.params")
    weights["arg:pre_fc1_weight"] = weights.pop("arg:fc1_weight")
    backbones.build("mbf", embedding_size=128).save(str(tmp_path / "mbf-symbol.json"))
    mx.nd.save(str(tmp_path / "mbf-0000.params"), weights)
    created, loaded = (Backbone.load(one).extract(IMAGES) for one in (tmp_path / "mbf", prefix))
    np.testing.assert_allclose(created, loaded, atol=1e-5)


def test_images_that_are_too_small(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="--network mbf cannot take images of 3 x 96 x 96 "):
        create("mbf", 96)
    assert capsys.readouterr().out == "", "MXNet's lines would make it several"


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_step_export_and_reload(output: str, tmp_path: Path) -> None:
    backbone, images = create(net_output=output), IMAGES[:2]
    found = train(backbone, images, updates=1)
    assert all(np.isfinite(array).all() for array in found.values())
    assert np.abs(found["conv0_weight"]).max() > 0
    backbone.export(tmp_path / "model")
    expected = backbone.extract(images)
    np.testing.assert_array_equal(Backbone.load(tmp_path / "model").extract(images), expected)
    # InsightFace's MobileFaceNets have another name for this tensor.
    path = str(tmp_path / "model-0000.params")
    weights = mx.nd.load(path)
    for name in ("pre_fc1_weight", "fc1_weight"):
        if "arg:pre_fc1_weight" in weights:
            weights[f"arg:{name}"] = weights.pop("arg:pre_fc1_weight")
        mx.nd.save(path, weights)
        again = create(net_output=output, pretrained=f"{tmp_path}/model,0")
        np.testing.assert_array_equal(again.extract(images), expected)


def test_dropout_depends_on_seed_update_and_rank_alone() -> None:
    def features(backbone: Backbone, *update_and_rank: int) -> bytes:
        backbone.begin_update(*update_and_rank)
        with mx.autograd.record():
            return backbone(mx.nd.array(IMAGES)).asnumpy().tobytes()

    backbone = create(net_output="E")
    plain = features(backbone, 0, 0)
    assert plain not in (features(backbone, 1, 0), features(backbone, 0, 1))
    assert plain == features(backbone, 0, 0) == features(create(net_output="E"), 0, 0)


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


def test_options_that_are_taken(tmp_path: Path) -> None:
    (tmp_path / "a,b-0012.params").touch()
    BackboneOptions(pretrained=f"{tmp_path}/a,b,12", net_output="E").check()
    assert split_checkpoint("pretrained", f"{tmp_path}/a,b,12") == (f"{tmp_path}/a,b", 12)
    BackboneOptions(sync_bn=True).check()
    # Units that are trained do not begin as the identity.
    options = ClassifierOptions(model="ResNet18", pretrained=f"{tmp_path}/a,b,12", last_gamma=True)
    with pytest.raises(ConfigError, match="--last-gamma and --pretrained .*a,b,12 exclude"):
        options.check()
    assert BackboneOptions(network="r50", net_output="FC").other_output is None
    assert BackboneOptions(network="mbf", net_output="FC").other_output == "FC"


SYNC: Any = {"sync_bn": True}


@pytest.mark.parametrize(("options", "message"), [
    (BackboneOptions(pretrained="model"), "--pretrained 'model' is not PREFIX,EPOCH"),
    (BackboneOptions(pretrained=",3"), "is not PREFIX,EPOCH"),
    (BackboneOptions(pretrained="model,x"), "is not PREFIX,EPOCH"),
    (BackboneOptions(pretrained="model,1234567890"), "is not PREFIX,EPOCH"),
    (BackboneOptions(pretrained="m" * 300 + ",3"), "is not PREFIX,EPOCH"),
    (ClassifierOptions(pretrained="none,2", model="LeNet"), "none,2' is not PREFIX,EPOCH"),
    (BackboneOptions(recompute=True, **SYNC), "--sync-bn and --recompute exclude each other"),
    (BackboneOptions(accumulate=2, **SYNC), "--sync-bn and --accumulate 2 exclude each other"),
    (BackboneOptions("bfloat16", **SYNC), "--sync-bn and --dtype bfloat16 exclude each other"),
    (ClassifierOptions("bfloat16", **SYNC), "--sync-bn and --dtype bfloat16 exclude each other"),
    (BackboneOptions(freeze=("a*", "b"), **SYNC), r"--sync-bn and --freeze a\*,b exclude"),
    (BackboneOptions(net_output="GNP"), "--net-output 'GNP' is unknown .did you mean 'GNAP'"),
    (ClassifierOptions(model="ResNet19"), "'ResNet19' is unknown"),
])
def test_options_that_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options.check()


UNIT, PARAMETERS = "stage4_unit1_conv1_weight", "m-0000.params"


def test_weights_depend_on_seed_and_name_alone() -> None:
    mx.random.seed(1)
    weights = values(create(seed=5))
    mx.random.seed(2)
    mx.nd.random.normal(shape=(10,)).wait_to_read()
    assert_same(values(create(seed=5)), weights)
    others = values(create(seed=6))
    for name, value in weights.items():
        assert np.array_equal(value, others[name]) == (not name.endswith("_weight")), name
    assert weights[UNIT].shape == weights["stage4_conv0_weight"].shape
    assert not np.array_equal(weights[UNIT], weights["stage4_conv0_weight"])


def test_initial_values_and_weight_decay() -> None:
    backbone = create("r18", embedding_size=64)
    weights = values(backbone)
    weight = weights["stage3_unit1_conv1_weight"]
    assert abs(weight.std() / np.sqrt(2 / (128 * 9)) - 1) < 0.01 and abs(weight.mean()) < 1e-3
    assert set(weights["stage1_unit1_relu1_gamma"]) == {0.25}
    assert set(weights["stage1_unit1_bn1_gamma"]) | set(weights["fc1_moving_var"]) == {1.0}
    assert set(weights["pre_fc1_bias"]) | set(weights["fc1_beta"]) == {0.0}
    kinds = {name: stored.kind for name, stored in backbone.export_state(0).arrays.items()}
    for name, parameter in backbone.parameters.items():
        assert parameter.wd_mult == (1.0 if name.endswith("_weight") else 0.0), name
        is_statistic = "_moving_" in name
        is_trained = not is_statistic and name != "fc1_gamma"
        assert (parameter.grad_req != "null") == is_trained, name
        # Statistics are each rank's own, and the rest is the same on all.
        assert kinds[name] == (OWN if is_statistic else REPLICATED), name


def test_a_network_is_exported_loaded_and_trained_on(tmp_path: Path) -> None:
    backbone = create()
    train(backbone, IMAGES, updates=1)
    with pytest.raises(DataError, match="No such file or directory"):
        backbone.export(tmp_path / "deep" / "model", 3)
    assert not [*tmp_path.iterdir()]  # a run's folder that was moved away is not made again
    backbone.export(tmp_path / "model", 3)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    parameters, graph = written.pop("model-0003.params"), written.pop("model-symbol.json")
    assert not written
    # The newest form, with NumPy's shapes, has another number at the beginning.
    old, new = (number.to_bytes(4, "little") for number in (0xF993FAC9, 0xF993FACA))
    (tmp_path / PARAMETERS).write_bytes(parameters.replace(old, new))
    (tmp_path / "m-symbol.json").write_bytes(graph)
    assert_same(values(Backbone.load(tmp_path / "m")), values(backbone))
    loaded = Backbone.load(tmp_path / "model", 3)
    assert_same(values(loaded), values(backbone))
    np.testing.assert_array_equal(loaded.extract(IMAGES), backbone.extract(IMAGES))
    assert_same(train(loaded, IMAGES, updates=1), train(backbone, IMAGES, updates=1))
    assert_same(values(loaded), values(backbone))
    # Whatever trained, what is exported is the plain float32 graph.
    half = create(dtype="float16")
    assert half.parameters["conv0_weight"].dtype == np.float16
    half.export(tmp_path / "m")
    assert (tmp_path / "m-symbol.json").read_text() == create().graph.tojson()
    saved = mx.nd.load(str(tmp_path / PARAMETERS))
    assert {array.dtype for array in saved.values()} == {np.float32}


def write_tensors(path: Path, **changes: Any) -> None:
    """Change tensors of a file; None takes one out. ``_`` stands for the colon in a name."""
    weights = mx.nd.load(str(path))
    for key, array in changes.items():
        name = key.replace("_", ":", 1)
        weights.pop(name, None)
        weights.update({} if array is None else {name: array})
    mx.nd.save(str(path), weights)


@pytest.mark.parametrize(("file", "spoil", "message"), [
    ("m-symbol.json", Path.unlink, "m-symbol.json does not exist"),
    ("m-symbol.json", lambda path: path.write_text("{"), "be used .it is no JSON"),
    (PARAMETERS, Path.unlink, "m-0000.params does not exist"),
    (PARAMETERS, lambda path: path.write_bytes(b"no parameters"), "no MXNet parameter"),
    (PARAMETERS, lambda path: path.write_bytes(b""), "cannot be read"),
    (PARAMETERS, lambda path: write_tensors(path, arg_bn0_beta=None), "lacks 'bn0_beta'"),
    (
        PARAMETERS,
        lambda path: write_tensors(path, aux_bn0_moving_var=mx.nd.ones((3,))),
        r"'bn0_moving_var' has shape \(3,\).* \(32,\)",
    ),
    (PARAMETERS, lambda path: mx.nd.save(str(path), [mx.nd.ones((2,))]), "without names"),
])
def test_broken_checkpoints(tmp_path, file, spoil, message) -> None:
    create().export(tmp_path / "m")
    spoil(tmp_path / file)
    with pytest.raises(DataError, match=message):
        Backbone.load(tmp_path / "m")


def test_an_interrupted_export_leaves_the_old_files(tmp_path, monkeypatch) -> None:
    create().export(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fails(file: Any, arrays: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("backbones.network.write_parameters", fails)
    with pytest.raises(DataError, match="cannot be written: No space left"):
        create(seed=2).export(tmp_path / "model")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_weights_of_another_checkpoint(tmp_path: Path, caplog) -> None:
    prefix, backbone, source = tmp_path / "m", create(seed=1), create(seed=2)
    source.export(prefix)
    backbone.load_pretrained(prefix, 0)
    assert_same(values(backbone), values(source))
    own = {"arg_bn0_beta": None, "aux_bn0_moving_var": None}
    write_tensors(tmp_path / PARAMETERS, arg_fc7_weight=mx.nd.ones((3, 16)), **own)
    backbone = create(seed=1)
    backbone.parameters["bn0_beta"].data()[:] = 7
    with caplog.at_level("INFO"):
        backbone.load_pretrained(prefix, 0)
    assert "2 tensors missing, left at their initial values: bn0_beta bn0_moving" in caplog.text
    assert "1 tensors left over in the file: fc7_weight" in caplog.text
    assert (values(backbone)["bn0_beta"] == 7).all()
    assert (values(backbone)[UNIT] == values(source)[UNIT]).all()
    other = create(embedding_size=8, seed=1)
    before = values(other)
    with pytest.raises(DataError, match="has shape .*choose the --network, --net-output"):
        other.load_pretrained(prefix, 0)
    assert_same(values(other), before)
    mx.nd.save(str(tmp_path / PARAMETERS), {"arg:other": mx.nd.ones((2,))})
    with pytest.raises(DataError, match="no tensor of this network .*'other'"):
        other.load_pretrained(prefix, 0)


def test_the_graph_and_the_arrays_of_a_backbone(tmp_path: Path) -> None:
    created = create("mbf")
    created.export(tmp_path / "model")
    found = read_checkpoint(tmp_path / "model", 0)
    assert found.output == "fc1_output" and found.image_shape == (3, 112, 112)
    file = read_parameters(tmp_path / "model-0000.params")
    assert {name.split(":")[1] for name in file} == found.weights.keys()
    assert found.parameter_count() == backbones.parameter_count("mbf", 16)
    shapes = found.shapes()
    assert shapes["data"] == (-1, 3, 112, 112) and shapes["fc1"] == (-1, 16)
    assert shapes["conv_1_conv2d_weight"] == (64, 3, 3, 3)
    features = found.network()(mx.nd.array(IMAGES)).asnumpy()
    expected = created.extract(IMAGES)
    np.testing.assert_allclose(features, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(("model", "shape"), [("LeNet", (1, 28, 28)), ("resnet20", (3, 32, 32))])
def test_a_classifier_and_its_channels(tmp_path, model, shape) -> None:
    network = classifier(model, shape)
    network.export(tmp_path / "model")
    found = read_checkpoint(tmp_path / "model", 0, shape[1:])
    assert found.output == "output_output" and found.image_shape == shape
    images = mx.nd.array(np.random.default_rng(0).integers(0, 256, (2, *shape)))
    expected = network(images).asnumpy()
    np.testing.assert_allclose(found.network()(images).asnumpy(), expected, rtol=1e-4, atol=1e-5)
    if model != "LeNet":
        # LeNet has a layer with the name of an embedding, which is not what it gives.
        with pytest.raises(DataError, match="no path from 'data' to 'fc1_output'"):
            Backbone.load(tmp_path / "model")


# The last is a float64, and too large for the float32 that MXNet makes of it.
@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e39])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    """By whatever takes a network: on the way activations make numbers of them again."""
    created, side, shape = create(side=32), (32, 32), (1, 28, 28)
    lenet = classifier("LeNet", shape)
    for prefix, own, name in (("m", created, "conv0_weight"), ("c", lenet, "fc_output_weight")):
        own.export(tmp_path / prefix)
        array = values(own)[name].astype(np.float64)
        array.flat[-1] = value
        changed = {f"arg_{name}": mx.nd.array(array, dtype="f8")}
        write_tensors(tmp_path / f"{prefix}-0000.params", **changed)
    for take in (
        lambda: Backbone.load(tmp_path / "m", image_size=side),
        lambda: read_checkpoint(tmp_path / "m", 0, side),
        lambda: created.load_pretrained(tmp_path / "m", 0),
        lambda: classifier("LeNet", shape, pretrained=f"{tmp_path}/c,0"),
    ):
        with pytest.raises(DataError, match="-0000.params: '.*_weight' has values that are not"):
            take()
    # A layer that is not taken does not count.
    classifier("LeNet", shape, classes=5, pretrained=f"{tmp_path}/c,0")
