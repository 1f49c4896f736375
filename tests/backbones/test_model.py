from __future__ import annotations

import errno

import numpy as np
import pytest

from backbones import network
from backbones.model import Backbone
from backbones.options import BackboneOptions
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from runtime.state import OWN, REPLICATED


def make(seed: int = 1, dtype: str = "float32", **more) -> Backbone:
    options = BackboneOptions(dtype, network="tiny", embedding_size=16)
    return Backbone.create(options, seed=seed, **more)


def values(backbone: Backbone) -> dict[str, np.ndarray]:
    return {name: p.data().asnumpy() for name, p in backbone.parameters.items()}


def train_step(backbone: Backbone, images: np.ndarray) -> np.ndarray:
    trainer = mx.gluon.Trainer(
        backbone.parameters, mx.optimizer.SGD(learning_rate=0.1), kvstore=None
    )
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


def test_equal_seeds_give_equal_weights_whatever_mxnet_drew_before() -> None:
    mx.random.seed(1)
    first = make(seed=5)
    mx.random.seed(2)
    mx.nd.random.normal(shape=(10,)).wait_to_read()
    assert_equal_values(first, make(seed=5))


def test_other_seeds_give_other_weights() -> None:
    first, second = values(make(seed=5)), values(make(seed=6))
    for name in first:
        assert np.array_equal(first[name], second[name]) == (not name.endswith("_weight")), name


def test_tensors_of_equal_shape_differ() -> None:
    weights = values(make())
    first, second = (
        weights[f"stage{stage}_{conv}_weight"] for stage, conv in ((4, "conv0"), (4, "unit1_conv1"))
    )
    assert first.shape == second.shape
    assert not np.array_equal(first, second)


def test_initial_values() -> None:
    backbone = Backbone.create(BackboneOptions(network="r18", embedding_size=64))
    weights = values(backbone)
    weight = weights["stage3_unit1_conv1_weight"]
    assert abs(weight.std() / np.sqrt(2 / (128 * 9)) - 1) < 0.01
    assert abs(weight.mean()) < 1e-3
    assert set(weights["stage1_unit1_relu1_gamma"]) == {0.25}
    assert set(weights["stage1_unit1_bn1_gamma"]) == {1.0}
    assert set(weights["fc1_moving_var"]) == {1.0}
    assert set(weights["pre_fc1_bias"]) | set(weights["fc1_beta"]) == {0.0}


def test_weight_decay_excludes_biases_batch_norm_and_slopes() -> None:
    for name, parameter in Backbone.create(
        BackboneOptions(network="r18", embedding_size=64)
    ).parameters.items():
        assert parameter.wd_mult == (1.0 if name.endswith("_weight") else 0.0), name


def test_weight_decay_reaches_the_optimizer(images) -> None:
    backbone = make()
    before = values(backbone)
    optimizer = mx.optimizer.SGD(learning_rate=0.1, wd=0.5)
    trainer = mx.gluon.Trainer(backbone.parameters, optimizer, kvstore=None)
    with mx.autograd.record():
        loss = backbone(mx.nd.array(images)).sum() * 0
    loss.backward()
    trainer.step(1)
    after = values(backbone)
    np.testing.assert_allclose(after["conv0_weight"], before["conv0_weight"] * 0.95, rtol=1e-6)
    np.testing.assert_array_equal(after["bn0_gamma"], before["bn0_gamma"])


def test_only_what_is_trained_has_a_gradient() -> None:
    untrained = {name for name, p in make().parameters.items() if p.grad_req == "null"}
    expected = {name for name in values(make()) if "_moving_" in name} | {"fc1_gamma"}
    assert untrained == expected


def test_features_have_shape_and_type(images) -> None:
    backbone = make()
    for array in (mx.nd.array(images, dtype="uint8"), mx.nd.array(images, dtype="float32")):
        features = backbone(array)
        assert features.shape == (4, 16)
        assert features.dtype == np.float32


def test_other_image_sizes(images) -> None:
    backbone = make(image_size=(64, 48))
    assert backbone.extract(images[:, :, :64, :48]).shape == (4, 16)


def test_gradients_are_those_of_finite_differences(images) -> None:
    backbone = make()
    data = mx.nd.array(images)
    direction = mx.nd.array(np.random.default_rng(0).standard_normal((4, 16)))
    beta = backbone.parameters["stage4_unit1_bn1_beta"]

    def loss() -> float:
        with mx.autograd.record():
            result = (backbone(data) * direction).sum()
        result.backward()
        return float(result.asscalar())

    loss()
    gradient = beta.grad().asnumpy()
    step = np.zeros_like(gradient)
    step[gradient.argmax()] = 1e-2
    origin = beta.data().copy()
    beta.set_data(origin + mx.nd.array(step))
    upper = loss()
    beta.set_data(origin - mx.nd.array(step))
    lower = loss()
    np.testing.assert_allclose((upper - lower) / 2e-2, gradient.max(), rtol=0.02)


def test_training_updates_the_running_statistics_by_their_momentum(images) -> None:
    backbone = make()
    conv0 = backbone.parameters["conv0_weight"].data().copy()
    train_step(backbone, images)
    scaled = (mx.nd.array(images) - 127.5) / 128
    maps = mx.nd.Convolution(
        scaled, conv0, num_filter=32, kernel=(5, 5), stride=(4, 4), pad=(2, 2), no_bias=True
    ).asnumpy()
    statistics = values(backbone)
    mean, variance = maps.mean((0, 2, 3)), maps.var((0, 2, 3))
    np.testing.assert_allclose(statistics["bn0_moving_mean"], 0.1 * mean, atol=1e-5)
    np.testing.assert_allclose(statistics["bn0_moving_var"], 0.9 + 0.1 * variance, rtol=1e-3)


def test_inference_leaves_everything_as_it_is(images) -> None:
    backbone = make()
    before = values(backbone)
    backbone.extract(images)
    for name, value in values(backbone).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_statistics_are_the_arrays_that_inference_reads(images) -> None:
    backbone = make()
    before = backbone.extract(images)
    assert len(backbone.statistics) == 2 * 9
    backbone.statistics[-2][:] = 1.0  # the running mean of fc1, the last BatchNorm
    np.testing.assert_allclose(backbone.extract(images), before - 1.0, atol=1e-4)


def test_hybridized_training_and_inference_of_changing_shapes(images) -> None:
    plain, planned = make(), make()
    planned.hybridize()
    for count in (4, 3, 4):
        np.testing.assert_allclose(
            train_step(planned, images[:count]), train_step(plain, images[:count]), atol=1e-4
        )
        np.testing.assert_allclose(
            planned.extract(images[:2]), plain.extract(images[:2]), atol=1e-3
        )


def test_fixed_gamma_stays_one(images) -> None:
    backbone = make()
    train_step(backbone, images)
    after = values(backbone)
    assert set(after["fc1_gamma"]) == {1.0}
    assert np.abs(after["fc1_beta"]).max() > 0


def test_export_and_load_give_the_same_network(images, tmp_path) -> None:
    backbone = make()
    train_step(backbone, images)
    deep = tmp_path / "very" / "deep"
    backbone.export(deep / "model", 3)
    assert sorted(path.name for path in deep.iterdir()) == [
        "model-0003.params",
        "model-symbol.json",
    ]
    loaded = Backbone.load(deep / "model", 3)
    assert_equal_values(backbone, loaded)
    np.testing.assert_array_equal(loaded.extract(images), backbone.extract(images))


def test_a_loaded_network_trains(images, tmp_path) -> None:
    make().export(tmp_path / "model")
    loaded = Backbone.load(tmp_path / "model")
    created = make()
    np.testing.assert_array_equal(train_step(loaded, images), train_step(created, images))
    assert_equal_values(loaded, created)


def test_exported_files_are_read_by_mxnets_own_module(images, tmp_path) -> None:
    backbone = make()
    backbone.export(tmp_path / "model")
    symbol, arguments, auxiliary = mx.model.load_checkpoint(str(tmp_path / "model"), 0)
    module = mx.mod.Module(symbol, data_names=["data"], label_names=None)
    module.bind([("data", (4, 3, 112, 112))], for_training=False)
    module.set_params(arguments, auxiliary)
    module.forward(mx.io.DataBatch([mx.nd.array(images)]), is_train=False)
    np.testing.assert_allclose(
        module.get_outputs()[0].asnumpy(), backbone.extract(images), atol=1e-5
    )


def test_exported_graph_is_plain_float32_whatever_trained(tmp_path) -> None:
    half = make(dtype="float16")
    assert half.parameters["conv0_weight"].dtype == np.float16
    half.export(tmp_path / "half")
    make().export(tmp_path / "plain")
    graph = (tmp_path / "half-symbol.json").read_text()
    assert graph == (tmp_path / "plain-symbol.json").read_text()
    saved = mx.nd.load(str(tmp_path / "half-0000.params"))
    assert {array.dtype for array in saved.values()} == {np.float32}


def test_nodes_after_the_embedding_are_ignored(tmp_path, images) -> None:
    backbone = make()
    backbone.export(tmp_path / "plain")
    symbol = mx.sym.FullyConnected(mx.sym.load(f"{tmp_path}/plain-symbol.json"), num_hidden=3)
    symbol.save(f"{tmp_path}/classifier-symbol.json")
    weights = mx.nd.load(f"{tmp_path}/plain-0000.params")
    weights["arg:fullyconnected0_weight"] = mx.nd.ones((3, 16))
    mx.nd.save(f"{tmp_path}/classifier-0000.params", weights)
    loaded = Backbone.load(tmp_path / "classifier")
    np.testing.assert_array_equal(loaded.extract(images), backbone.extract(images))


def test_published_checkpoint_loads(toolkit_data, images) -> None:
    backbone = Backbone.load(toolkit_data / "mobilefacenet_y1" / "model")
    features = backbone.extract(images)
    assert features.shape == (4, 128)
    assert np.isfinite(features).all()


class TestBrokenCheckpoints:
    @pytest.fixture
    def prefix(self, tmp_path):
        make().export(tmp_path / "model")
        return tmp_path / "model"

    def change_weights(self, prefix, change) -> None:
        weights = mx.nd.load(f"{prefix}-0000.params")
        change(weights)
        mx.nd.save(f"{prefix}-0000.params", weights)

    def test_missing_files(self, prefix) -> None:
        with pytest.raises(DataError, match="other-symbol.json does not exist"):
            Backbone.load(prefix.with_name("other"))
        with pytest.raises(DataError, match="model-0007.params does not exist"):
            Backbone.load(prefix, 7)

    def test_broken_graph(self, prefix) -> None:
        prefix.with_name("model-symbol.json").write_text("{")
        with pytest.raises(DataError, match="model-symbol.json is no MXNet graph.*it is no JSON"):
            Backbone.load(prefix)

    def test_graph_without_embedding(self, prefix) -> None:
        mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=2).save(f"{prefix}-symbol.json")
        with pytest.raises(DataError, match="no path from 'data' to 'fc1_output'"):
            Backbone.load(prefix)

    def test_graph_for_one_size_of_batch(self, prefix) -> None:
        """As a node with the batch in its shape makes it: another batch needs other weights."""
        flat = mx.sym.reshape(mx.sym.var("data"), shape=(1, -1))
        mx.sym.FullyConnected(flat, num_hidden=2, name="fc1").save(f"{prefix}-symbol.json")
        with pytest.raises(DataError, match="for one batch size only"):
            Backbone.load(prefix)

    def test_broken_parameters(self, prefix) -> None:
        prefix.with_name("model-0000.params").write_bytes(b"no parameters at all")
        with pytest.raises(DataError, match="model-0000.params is no MXNet parameter file"):
            Backbone.load(prefix)

    def test_the_newest_form_of_arrays_is_read(self, prefix) -> None:
        """As MXNet writes them with NumPy's shapes: the same but for a number at the beginning."""
        path = prefix.with_name("model-0000.params")
        before = values(Backbone.load(prefix))
        old, new = (number.to_bytes(4, "little") for number in (0xF993FAC9, 0xF993FACA))
        assert path.read_bytes().count(old) >= len(before)
        path.write_bytes(path.read_bytes().replace(old, new))
        after = values(Backbone.load(prefix))
        assert all(np.array_equal(after[name], array) for name, array in before.items())

    def test_missing_tensor(self, prefix) -> None:
        self.change_weights(prefix, lambda weights: weights.pop("arg:bn0_beta"))
        with pytest.raises(DataError, match="lacks 'bn0_beta'"):
            Backbone.load(prefix)

    def test_wrong_shape(self, prefix) -> None:
        self.change_weights(prefix, lambda w: w.update({"aux:bn0_moving_var": mx.nd.ones((3,))}))
        with pytest.raises(DataError, match=r"'bn0_moving_var' has shape \(3,\).* \(32,\)"):
            Backbone.load(prefix)

    def test_arrays_without_names(self, prefix) -> None:
        mx.nd.save(f"{prefix}-0000.params", [mx.nd.ones((2,))])
        with pytest.raises(DataError, match="without names"):
            Backbone.load(prefix)


def test_unknown_network() -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        Backbone.create(BackboneOptions(network="tini"))


def test_an_interrupted_export_leaves_the_old_files(tmp_path, monkeypatch, images) -> None:
    backbone = make()
    backbone.export(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fails(file, arrays) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(network, "write_parameters", fails)
    train_step(backbone, images)
    with pytest.raises(DataError, match="cannot be written: No space left"):
        backbone.export(tmp_path / "model")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


class TestLoadPretrained:
    @pytest.fixture
    def prefix(self, tmp_path):
        make(seed=2).export(tmp_path / "model")
        return tmp_path / "model"

    def test_all_tensors_are_loaded(self, prefix) -> None:
        backbone = make(seed=1)
        tensors = backbone.load_pretrained(prefix, 0)
        assert_equal_values(backbone, make(seed=2))
        assert set(tensors.loaded) == set(backbone.parameters)
        assert (tensors.missing, tensors.left_over) == ([], [])

    def test_missing_tensors_keep_their_values_and_the_others_are_named(self, prefix) -> None:
        weights = mx.nd.load(f"{prefix}-0000.params")
        weights["arg:fc7_weight"] = mx.nd.ones((3, 16))
        del weights["arg:bn0_beta"], weights["aux:bn0_moving_var"]
        mx.nd.save(f"{prefix}-0000.params", weights)
        backbone = make(seed=1)
        backbone.parameters["bn0_beta"].data()[:] = 7
        tensors = backbone.load_pretrained(prefix, 0)
        assert sorted(tensors.missing) == ["bn0_beta", "bn0_moving_var"]
        assert tensors.left_over == ["fc7_weight"]
        assert (values(backbone)["bn0_beta"] == 7).all()
        assert (values(backbone)["conv0_weight"] == values(make(seed=2))["conv0_weight"]).all()

    def test_another_shape_changes_nothing(self, prefix) -> None:
        backbone = Backbone.create(BackboneOptions(network="tiny", embedding_size=8), seed=1)
        before = values(backbone)
        with pytest.raises(DataError, match="has shape .*choose the --network, --net-output"):
            backbone.load_pretrained(prefix, 0)
        assert all((values(backbone)[name] == value).all() for name, value in before.items())

    def test_a_checkpoint_without_a_common_tensor_is_refused(self, prefix) -> None:
        mx.nd.save(f"{prefix}-0000.params", {"arg:other": mx.nd.ones((2,))})
        with pytest.raises(DataError, match="no tensor of this network .*'other'"):
            make().load_pretrained(prefix, 0)


def test_all_tensors_of_a_published_checkpoint_are_loaded(toolkit_data) -> None:
    backbone = Backbone.create(BackboneOptions(network="mbf", embedding_size=128))
    tensors = backbone.load_pretrained(toolkit_data / "mobilefacenet_y1/model", 0)
    assert tensors.missing == [] and tensors.left_over == []


def test_statistics_are_each_ranks_own_and_the_rest_is_the_same_on_all() -> None:
    backbone = Backbone.create(
        BackboneOptions(network="tiny", embedding_size=8), image_size=(32, 32), seed=1
    )
    kinds = {name: stored.kind for name, stored in backbone.export_state(0).arrays.items()}
    assert set(kinds.values()) == {OWN, REPLICATED}
    for name, kind in kinds.items():
        assert (kind == OWN) == name.endswith(("_moving_mean", "_moving_var")), name
