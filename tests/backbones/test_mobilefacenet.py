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

    ours = Backbone.load(tmp_path / "mbf").extract(images)
    theirs = Backbone.load(prefix).extract(images)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_names_are_those_of_the_published_checkpoint(toolkit_data, tensor_shapes) -> None:
    published = mx.sym.load(str(toolkit_data / "mobilefacenet_y1" / "model-symbol.json"))
    ours = tensor_shapes(backbones.build("mbf", embedding_size=128))
    theirs = tensor_shapes(published)
    theirs["pre_fc1_weight"] = theirs.pop("fc1_weight")
    assert ours == theirs
