from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backbones import network
from backbones.model import Backbone
from backbones.options import BackboneOptions
from runtime.errors import DataError
from runtime.mxnet import mx
from runtime.state import OWN, REPLICATED
from tests.backbones.passes import assert_same, create, train, values

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


def test_inference_changes_nothing_and_reads_the_statistics(images: np.ndarray) -> None:
    options = BackboneOptions(network="tiny", embedding_size=16)
    backbone, images = Backbone.create(options, image_size=(64, 48)), images[:, :, :64, :48]
    untouched, before = values(backbone), backbone.extract(images)
    assert before.shape == (4, 16) and before.dtype == np.float32
    assert_same(values(backbone), untouched)
    assert len(backbone.statistics) == 2 * 9
    backbone.statistics[-2][:] = 1.0  # the running mean of fc1, the last BatchNorm
    np.testing.assert_allclose(backbone.extract(images), before - 1.0, atol=1e-4)


def test_a_network_is_exported_loaded_and_trained_on(images: np.ndarray, tmp_path: Path) -> None:
    backbone = create()
    train(backbone, images, updates=1)
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
    np.testing.assert_array_equal(loaded.extract(images), backbone.extract(images))
    assert_same(train(loaded, images, updates=1), train(backbone, images, updates=1))
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
    ("m-symbol.json", lambda path: path.write_text("{"), "no MXNet .* no JSON"),
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

    monkeypatch.setattr(network, "write_parameters", fails)
    with pytest.raises(DataError, match="cannot be written: No space left"):
        create(seed=2).export(tmp_path / "model")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_weights_of_another_checkpoint(tmp_path: Path) -> None:
    prefix, backbone, source = tmp_path / "m", create(seed=1), create(seed=2)
    source.export(prefix)
    tensors = backbone.load_pretrained(prefix, 0)
    assert_same(values(backbone), values(source))
    assert {*tensors.loaded} == {*backbone.parameters}
    assert (tensors.missing, tensors.left_over) == ([], [])

    # What is missing keeps its values, and the rest is named.
    own = {"arg_bn0_beta": None, "aux_bn0_moving_var": None}
    write_tensors(tmp_path / PARAMETERS, arg_fc7_weight=mx.nd.ones((3, 16)), **own)
    backbone = create(seed=1)
    backbone.parameters["bn0_beta"].data()[:] = 7
    tensors = backbone.load_pretrained(prefix, 0)
    assert sorted(tensors.missing) == ["bn0_beta", "bn0_moving_var"]
    assert tensors.left_over == ["fc7_weight"]
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
