from __future__ import annotations

import errno
import shutil
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

UNIT, PARAMETERS = "stage4_unit1_conv1_weight", "m-0000.params"


def make(seed: int = 1, dtype: str = "float32", **more: Any) -> Backbone:
    options = BackboneOptions(dtype, network="tiny", embedding_size=16)
    return Backbone.create(options, seed=seed, **more)


def values(backbone: Backbone) -> dict[str, np.ndarray]:
    return {name: p.data().asnumpy() for name, p in backbone.parameters.items()}


def train_step(backbone: Backbone, images: np.ndarray) -> np.ndarray:
    rule = mx.optimizer.SGD(learning_rate=0.1)
    trainer = mx.gluon.Trainer(backbone.parameters, rule, kvstore=None)
    with mx.autograd.record():
        features = backbone(mx.nd.array(images, dtype="uint8"))
        loss = (features * features * mx.nd.arange(16)).sum()
    loss.backward()
    trainer.step(1)
    return features.asnumpy()


def assert_equal_values(first: Backbone, second: Backbone) -> None:
    left, right = values(first), values(second)
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)


def test_weights_depend_on_seed_and_name_alone() -> None:
    mx.random.seed(1)
    first = make(seed=5)
    mx.random.seed(2)
    mx.nd.random.normal(shape=(10,)).wait_to_read()
    assert_equal_values(first, make(seed=5))
    weights, others = values(first), values(make(seed=6))
    for name, value in weights.items():
        assert np.array_equal(value, others[name]) == (not name.endswith("_weight")), name
    assert weights[UNIT].shape == weights["stage4_conv0_weight"].shape
    assert not np.array_equal(weights[UNIT], weights["stage4_conv0_weight"])


def test_initial_values_and_weight_decay() -> None:
    backbone = Backbone.create(BackboneOptions(network="r18", embedding_size=64))
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
    size: Any = {"image_size": (64, 48)}
    backbone, untouched, images = make(**size), make(**size), images[:, :, :64, :48]
    before = backbone.extract(images)
    assert before.shape == (4, 16) and before.dtype == np.float32
    assert_equal_values(backbone, untouched)
    assert len(backbone.statistics) == 2 * 9
    backbone.statistics[-2][:] = 1.0  # the running mean of fc1, the last BatchNorm
    np.testing.assert_allclose(backbone.extract(images), before - 1.0, atol=1e-4)


def test_a_network_is_exported_loaded_and_trained_on(images: np.ndarray, tmp_path: Path) -> None:
    backbone = make()
    train_step(backbone, images)
    with pytest.raises(DataError, match="No such file or directory"):
        backbone.export(tmp_path / "deep" / "model", 3)
    assert not [*tmp_path.iterdir()]  # a run's folder that was moved away is not made again
    backbone.export(tmp_path / "model", 3)
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["model-0003.params", "model-symbol.json"]
    # The newest form, with NumPy's shapes, has another number at the beginning.
    path = tmp_path / found[0]
    old, new = (number.to_bytes(4, "little") for number in (0xF993FAC9, 0xF993FACA))
    path.with_name("m-0000.params").write_bytes(path.read_bytes().replace(old, new))
    shutil.copy(tmp_path / found[1], tmp_path / "m-symbol.json")
    assert_equal_values(Backbone.load(tmp_path / "m"), backbone)
    loaded = Backbone.load(tmp_path / "model", 3)
    assert_equal_values(backbone, loaded)
    np.testing.assert_array_equal(loaded.extract(images), backbone.extract(images))
    np.testing.assert_array_equal(train_step(loaded, images), train_step(backbone, images))
    assert_equal_values(loaded, backbone)
    # Whatever trained, what is exported is the plain float32 graph.
    half = make(dtype="float16")
    assert half.parameters["conv0_weight"].dtype == np.float16
    half.export(tmp_path / "m")
    assert (tmp_path / "m-symbol.json").read_text() == make().graph.tojson()
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


@pytest.mark.parametrize(
    ("file", "spoil", "message"),
    [
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
    ],
)
def test_broken_checkpoints(tmp_path, file, spoil, message) -> None:
    make().export(tmp_path / "m")
    spoil(tmp_path / file)
    with pytest.raises(DataError, match=message):
        Backbone.load(tmp_path / "m")


def test_an_interrupted_export_leaves_the_old_files(tmp_path, monkeypatch) -> None:
    make().export(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fails(file: Any, arrays: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(network, "write_parameters", fails)
    with pytest.raises(DataError, match="cannot be written: No space left"):
        make(seed=2).export(tmp_path / "model")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_weights_of_another_checkpoint(tmp_path: Path) -> None:
    prefix, backbone = tmp_path / "m", make(seed=1)
    make(seed=2).export(prefix)
    tensors = backbone.load_pretrained(prefix, 0)
    assert_equal_values(backbone, make(seed=2))
    assert set(tensors.loaded) == set(backbone.parameters)
    assert (tensors.missing, tensors.left_over) == ([], [])

    # What is missing keeps its values, and the rest is named.
    own = {"arg_bn0_beta": None, "aux_bn0_moving_var": None}
    write_tensors(tmp_path / PARAMETERS, arg_fc7_weight=mx.nd.ones((3, 16)), **own)
    backbone = make(seed=1)
    backbone.parameters["bn0_beta"].data()[:] = 7
    tensors = backbone.load_pretrained(prefix, 0)
    assert sorted(tensors.missing) == ["bn0_beta", "bn0_moving_var"]
    assert tensors.left_over == ["fc7_weight"]
    assert (values(backbone)["bn0_beta"] == 7).all()
    assert (values(backbone)[UNIT] == values(make(seed=2))[UNIT]).all()

    other = Backbone.create(BackboneOptions(network="tiny", embedding_size=8), seed=1)
    before = values(other)
    with pytest.raises(DataError, match="has shape .*choose the --network, --net-output"):
        other.load_pretrained(prefix, 0)
    assert all((values(other)[name] == value).all() for name, value in before.items())
    mx.nd.save(str(tmp_path / PARAMETERS), {"arg:other": mx.nd.ones((2,))})
    with pytest.raises(DataError, match="no tensor of this network .*'other'"):
        other.load_pretrained(prefix, 0)
