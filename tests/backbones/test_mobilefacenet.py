from __future__ import annotations

import numpy as np

import backbones
from backbones.model import Backbone
from runtime.mxnet import mx


def test_published_weights_fit_and_give_the_same_embeddings(toolkit_data, tmp_path, images) -> None:
    prefix = toolkit_data / "mobilefacenet_y1" / "model"
    weights = mx.nd.load(f"{prefix}-0000.params")
    weights["arg:pre_fc1_weight"] = weights.pop("arg:fc1_weight")
    backbones.build("mbf", embedding_size=128).save(str(tmp_path / "mbf-symbol.json"))
    mx.nd.save(str(tmp_path / "mbf-0000.params"), weights)

    created = Backbone.load(tmp_path / "mbf").extract(images)
    loaded = Backbone.load(prefix).extract(images)
    np.testing.assert_allclose(created, loaded, atol=1e-5)


def test_names_are_those_of_the_published_checkpoint(toolkit_data, tensor_shapes) -> None:
    published = mx.sym.load(str(toolkit_data / "mobilefacenet_y1" / "model-symbol.json"))
    created = tensor_shapes(backbones.build("mbf", embedding_size=128))
    loaded = tensor_shapes(published)
    loaded["pre_fc1_weight"] = loaded.pop("fc1_weight")
    assert created == loaded
