"""The registry of classifiers: their names, and how each is built.

As in the registry of the backbones, names are checked against a table, and MXNet is not imported
before ``build`` is called. The classifiers are the network of the MNIST examples, models of the
CIFAR-10 tutorial, which have exactly the parameters of their originals
(https://github.com/kuangliu/pytorch-cifar) and fit no other library's, the networks of Grouping-SGD
for CIFAR (https://github.com/CGCL-codes/MXNet-G), and Gluon's model zoo.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from runtime.options import check_name

_Layers = tuple[str, Mapping[str, Any]]
"""``module.function`` of this package that builds features [batch, n] of normalized pixels, and the
arguments after these."""


def _of(function: str, **arguments: Any) -> _Layers:
    return function, arguments


# Units per stage.
_18, _50, _101, _152 = (2, 2, 2, 2), (3, 4, 6, 3), (3, 4, 23, 3), (3, 8, 36, 3)
_400MF: Mapping[str, Any] = {
    "counts": (1, 2, 7, 12), "widths": (32, 64, 160, 384), "group_width": 16
}  # fmt: skip
_ARCHITECTURES: Mapping[str, _Layers] = {
    "LeNet": _of("stacked.lenet"),
    "VGG16": _of("stacked.vgg", counts=(2, 2, 3, 3, 3)),
    "ResNet18": _of("stacked.resnet", counts=_18),
    "ResNet50": _of("stacked.resnet", counts=_50, has_bottlenecks=True),
    "ResNet101": _of("stacked.resnet", counts=_101, has_bottlenecks=True),
    "RegNetX_200MF": _of(
        "stacked.regnet", counts=(1, 1, 4, 7), widths=(24, 56, 152, 368), group_width=8
    ),
    "RegNetY_400MF": _of("stacked.regnet", **_400MF, squeeze_ratio=0.25),
    "MobileNetV2": _of("stacked.mobilenet_v2"),
    "ResNeXt29_32x4d": _of("stacked.resnext29", groups=32, group_width=4),
    "ResNeXt29_2x64d": _of("stacked.resnext29", groups=2, group_width=64),
    "SimpleDLA": _of("dense.dla", has_binary_trees=True),
    "DenseNet121": _of("dense.densenet", counts=(6, 12, 24, 16)),
    "PreActResNet18": _of("stacked.preact_resnet", counts=_18),
    "DPN92": _of("dense.dpn", counts=(3, 4, 20, 3)),
    "DLA": _of("dense.dla"),
    "resnet20": _of("stacked.cifar_resnet", count=3, widths=(16, 32, 64)),
    "resnet164": _of("stacked.cifar_resnet", count=18, widths=(64, 128, 256), has_bottlenecks=True),
    "inception-bn-28-small": _of("dense.inception_bn_28_small"),
    "VGG11": _of("stacked.vgg", counts=(1, 1, 2, 2, 2)),
    "VGG13": _of("stacked.vgg", counts=(2, 2, 2, 2, 2)),
    "VGG19": _of("stacked.vgg", counts=(2, 2, 4, 4, 4)),
    "MobileNet": _of("stacked.mobilenet"),
    "ResNet34": _of("stacked.resnet", counts=_50),
    "ResNet152": _of("stacked.resnet", counts=_152, has_bottlenecks=True),
    "PreActResNet34": _of("stacked.preact_resnet", counts=_50),
    "PreActResNet50": _of("stacked.preact_resnet", counts=_50, has_bottlenecks=True),
    "PreActResNet101": _of("stacked.preact_resnet", counts=_101, has_bottlenecks=True),
    "PreActResNet152": _of("stacked.preact_resnet", counts=_152, has_bottlenecks=True),
    "SENet18": _of("stacked.preact_resnet", counts=_18, squeezes=True),
    "RegNetX_400MF": _of("stacked.regnet", **_400MF),
    "ResNeXt29_4x64d": _of("stacked.resnext29", groups=4, group_width=64),
    "ResNeXt29_8x64d": _of("stacked.resnext29", groups=8, group_width=64),
    "DenseNet161": _of("dense.densenet", counts=(6, 12, 36, 24), growth=48),
    "DenseNet169": _of("dense.densenet", counts=(6, 12, 32, 32)),
    "DenseNet201": _of("dense.densenet", counts=(6, 12, 48, 32)),
    "DPN26": _of("dense.dpn", counts=_18),
    "densenet_cifar": _of("dense.densenet", counts=(6, 12, 24, 16), growth=12),
}

# The names that mx.gluon.model_zoo.vision.get_model accepts: they are checked without MXNet.
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
    """Mean and standard deviation per channel, of pixels from 0 to 1."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def names() -> list[str]:
    """Return the names of all classifiers, Gluon's model zoo last."""
    return [*_ARCHITECTURES, *_ZOO]


def check(name: str) -> None:
    """Raise ``ConfigError`` if there is no classifier of this name."""
    check_name("model", name, names())


def build(name: str, *, classes: int, normalization: Normalization, dtype: str = "float32") -> Any:
    """Return the graph of a classifier: an ``mx.sym.Symbol`` from ``data`` to ``output_output``.

    The input is 0-255, float32 [batch, channels, height, width], and normalized in the graph; the
    output float32 [batch, classes]. The network computes in ``dtype``, float32 or float16.

    Raises:
        ConfigError: there is no classifier of this name.
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
        if name in _ARCHITECTURES:
            path, arguments = _ARCHITECTURES[name]
            module, function = path.split(".")
            features = getattr(import_module(f"{__name__}.{module}"), function)(x, **arguments)
            x = mx.sym.FullyConnected(features, num_hidden=classes, name="fc_output")
        else:
            block = mx.gluon.model_zoo.vision.get_model(name, classes=classes, prefix="zoo_")
            block.cast(dtype)
            x = block(x)
        return mx.sym.Cast(x, dtype="float32", name="output")
