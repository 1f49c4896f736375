"""Parameters as an optimizer of ``training`` takes them, and values as a checkpoint has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.mxnet import mx


def make_parameters(values: Mapping[str, Any], device: Any = None) -> Any:
    """A ``gluon.ParameterDict`` of arrays with their types; of them, weights decay."""
    parameters = mx.gluon.ParameterDict()
    for name, value in values.items():
        parameter = parameters.get(name, shape=value.shape, dtype=value.dtype.name)
        parameter.initialize(mx.init.Zero(), ctx=device or mx.cpu())
        parameter.set_data(mx.nd.array(value, dtype=value.dtype.name))
        parameter.wd_mult = float(name.endswith("_weight"))
    return parameters


class SavedValues(dict):
    """The values of a part of training, as ``runtime.state.Saved`` gives them back."""

    has = dict.__contains__
    count = number = numbers = dict.__getitem__
