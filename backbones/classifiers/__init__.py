"""The registry of classifiers: which names there are, and what each stands for.

Like that of the face networks one floor up: names are checked against a table, and nothing here
imports MXNet before ``build`` is called. There are the network of the MNIST examples, the fourteen
models of the Horovod CIFAR-10 tutorial, which have exactly the parameters of their originals
(https://github.com/kuangliu/pytorch-cifar) and fit no other library's, and Gluon's model zoo.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from runtime.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Model:
    """How one of our own models is built."""

    module: str
    """The module of this package whose ``features`` builds it up to the output layer."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for ``features``."""


def _resnet(*counts: int, has_bottlenecks: bool = False) -> Model:
    return Model("resnet", {"counts": counts, "has_bottlenecks": has_bottlenecks})


def _resnext(groups: int, group_width: int) -> Model:
    return Model("resnext", {"groups": groups, "group_width": group_width})


_MODELS: Mapping[str, Model] = {
    "LeNet": Model("lenet"),
    "VGG16": Model("vgg"),
    "ResNet18": _resnet(2, 2, 2, 2),
    "ResNet50": _resnet(3, 4, 6, 3, has_bottlenecks=True),
    "ResNet101": _resnet(3, 4, 23, 3, has_bottlenecks=True),
    "RegNetX_200MF": Model(
        "regnet", {"counts": (1, 1, 4, 7), "widths": (24, 56, 152, 368), "group_width": 8}
    ),
    "RegNetY_400MF": Model(
        "regnet",
        {
            "counts": (1, 2, 7, 12),
            "widths": (32, 64, 160, 384),
            "group_width": 16,
            "squeezed_share": 0.25,
        },
    ),
    "MobileNetV2": Model("mobilenet_v2"),
    "ResNeXt29_32x4d": _resnext(32, 4),
    "ResNeXt29_2x64d": _resnext(2, 64),
    "SimpleDLA": Model("dla", {"has_binary_trees": True}),
    "DenseNet121": Model("densenet"),
    "PreActResNet18": Model("preact_resnet"),
    "DPN92": Model("dpn"),
    "DLA": Model("dla"),
}

# What mx.gluon.model_zoo.vision.get_model knows; written down, so that a name is checked before
# MXNet is loaded.
_ZOO = (
    *(f"resnet{layers}_v{version}" for version in (1, 2) for layers in (18, 34, 50, 101, 152)),
    *(f"vgg{layers}{norm}" for norm in ("", "_bn") for layers in (11, 13, 16, 19)),
    "alexnet",
    *(f"densenet{layers}" for layers in (121, 161, 169, 201)),
    *("squeezenet1.0", "squeezenet1.1", "inceptionv3"),
    *(f"mobilenet{width}" for width in ("1.0", "0.75", "0.5", "0.25")),
    *(f"mobilenetv2_{width}" for width in ("1.0", "0.75", "0.5", "0.25")),
)


class Normalization(NamedTuple):
    """What is taken from the pixels, and by what they are divided, per channel, of pixels 0-1."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def names() -> list[str]:
    """Return the names of all classifiers, our own first."""
    return [*_MODELS, *_ZOO]


def check(name: str) -> None:
    """Raise ``ConfigError`` if there is no classifier of this name."""
    if name not in _MODELS and name not in _ZOO:
        raise ConfigError(
            f"model {name!r} is unknown{did_you_mean(name, names())}; there are "
            f"{', '.join(_MODELS)}, and those of Gluon's model zoo: {', '.join(_ZOO)}"
        )


def build(name: str, *, classes: int, normalization: Normalization, dtype: str = "float32") -> Any:
    """Return the graph of a classifier: a symbol from ``data`` to ``output_output``.

    Args:
        name: one of ``names()``.
        classes: the number of logits.
        normalization: of the data; a part of the graph, so that no tool can forget it.
        dtype: ``float32`` or ``float16``, in which the network computes; input and output are
            float32.

    Returns:
        An ``mx.sym.Symbol``; ``data`` is float32 [batch, channels, height, width], 0-255, the
        output float32 [batch, classes].

    Raises:
        ConfigError: if there is no classifier of this name.
    """
    check(name)
    from runtime.mxnet import mx

    # A name manager of its own: unnamed nodes count from zero in every graph, not in every process.
    with mx.name.NameManager():
        pixels = mx.sym.var("data") / 255.0
        x = mx.sym.image.normalize(
            pixels, mean=normalization.mean, std=normalization.deviation, name="normalized"
        )
        x = mx.sym.Cast(x, dtype=dtype, name="data_cast")
        if name in _MODELS:
            model = _MODELS[name]
            family = importlib.import_module(f"{__name__}.{model.module}")
            features = family.features(x, **model.arguments)
            x = mx.sym.FullyConnected(features, num_hidden=classes, name="fc_output")
        else:
            zoo = importlib.import_module(f"{__name__}.zoo")
            x = zoo.logits(x, name=name, classes=classes, dtype=dtype)
        return mx.sym.Cast(x, dtype="float32", name="output")
