"""The networks of Gluon's model zoo, as graphs like all others of this room."""

from __future__ import annotations

from backbones.layers import Symbol
from runtime.mxnet import mx


def logits(x: Symbol, *, name: str, classes: int, dtype: str) -> Symbol:
    """Return the logits [batch, classes] of normalized pixels ``x``, computed in ``dtype``."""
    block = mx.gluon.model_zoo.vision.get_model(name, classes=classes, prefix="zoo_")
    block.cast(dtype)
    return block(x)
