"""The registry of classifiers: their names, and how each is built.

As in the registry of the backbones, names are checked against a table, and MXNet is not imported
before ``build`` is called. The classifiers are the network of the MNIST examples, models of the
CIFAR-10 tutorial, which have exactly the parameters of their originals
(https://github.com/kuangliu/pytorch-cifar) and fit no other library's, the networks of Grouping-SGD
for CIFAR (https://github.com/CGCL-codes/MXNet-G), and Gluon's model zoo.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from runtime.errors import ConfigError, did_you_mean


class ClassifierArchitecture:
    """A function of this package, as ``module.function``, that builds all but the output layer."""

    def __init__(self, function: str, **arguments: Any) -> None:
        self._module, self._function = function.split(".")
        self._arguments = arguments

    def features(self, pixels: Any) -> Any:
        """Return the symbol of the features [batch, n] of normalized pixels; imports MXNet."""
        module = importlib.import_module(f"{__name__}.{self._module}")
        return getattr(module, self._function)(pixels, **self._arguments)


_ARCHITECTURES: Mapping[str, ClassifierArchitecture] = {
    "LeNet": ClassifierArchitecture("plain.lenet"),
    "VGG16": ClassifierArchitecture("plain.vgg", counts=(2, 2, 3, 3, 3)),
    "ResNet18": ClassifierArchitecture("residual.resnet", counts=(2, 2, 2, 2)),
    "ResNet50": ClassifierArchitecture("residual.bottleneck_resnet", counts=(3, 4, 6, 3)),
    "ResNet101": ClassifierArchitecture("residual.bottleneck_resnet", counts=(3, 4, 23, 3)),
    "RegNetX_200MF": ClassifierArchitecture(
        "residual.regnet", counts=(1, 1, 4, 7), widths=(24, 56, 152, 368), group_width=8
    ),
    "RegNetY_400MF": ClassifierArchitecture(
        "residual.regnet",
        counts=(1, 2, 7, 12),
        widths=(32, 64, 160, 384),
        group_width=16,
        squeeze_ratio=0.25,
    ),
    "MobileNetV2": ClassifierArchitecture("residual.mobilenet_v2"),
    "ResNeXt29_32x4d": ClassifierArchitecture("residual.resnext29", groups=32, group_width=4),
    "ResNeXt29_2x64d": ClassifierArchitecture("residual.resnext29", groups=2, group_width=64),
    "SimpleDLA": ClassifierArchitecture("dense.dla", has_binary_trees=True),
    "DenseNet121": ClassifierArchitecture("dense.densenet", counts=(6, 12, 24, 16)),
    "PreActResNet18": ClassifierArchitecture("residual.preact_resnet", counts=(2, 2, 2, 2)),
    "DPN92": ClassifierArchitecture("dense.dpn", counts=(3, 4, 20, 3)),
    "DLA": ClassifierArchitecture("dense.dla"),
    "resnet20": ClassifierArchitecture("residual.cifar_resnet", count=3, widths=(16, 32, 64)),
    "resnet164": ClassifierArchitecture(
        "residual.cifar_resnet", count=18, widths=(64, 128, 256), has_bottlenecks=True
    ),
    "inception-bn-28-small": ClassifierArchitecture("dense.inception_bn_28_small"),
    "VGG11": ClassifierArchitecture("plain.vgg", counts=(1, 1, 2, 2, 2)),
    "VGG13": ClassifierArchitecture("plain.vgg", counts=(2, 2, 2, 2, 2)),
    "VGG19": ClassifierArchitecture("plain.vgg", counts=(2, 2, 4, 4, 4)),
    "MobileNet": ClassifierArchitecture("plain.mobilenet"),
    "ResNet34": ClassifierArchitecture("residual.resnet", counts=(3, 4, 6, 3)),
    "ResNet152": ClassifierArchitecture("residual.bottleneck_resnet", counts=(3, 8, 36, 3)),
    "PreActResNet34": ClassifierArchitecture("residual.preact_resnet", counts=(3, 4, 6, 3)),
    "PreActResNet50": ClassifierArchitecture(
        "residual.preact_resnet", counts=(3, 4, 6, 3), has_bottlenecks=True
    ),
    "PreActResNet101": ClassifierArchitecture(
        "residual.preact_resnet", counts=(3, 4, 23, 3), has_bottlenecks=True
    ),
    "PreActResNet152": ClassifierArchitecture(
        "residual.preact_resnet", counts=(3, 8, 36, 3), has_bottlenecks=True
    ),
    "SENet18": ClassifierArchitecture("residual.preact_resnet", counts=(2, 2, 2, 2), squeezes=True),
    "RegNetX_400MF": ClassifierArchitecture(
        "residual.regnet", counts=(1, 2, 7, 12), widths=(32, 64, 160, 384), group_width=16
    ),
    "ResNeXt29_4x64d": ClassifierArchitecture("residual.resnext29", groups=4, group_width=64),
    "ResNeXt29_8x64d": ClassifierArchitecture("residual.resnext29", groups=8, group_width=64),
    "DenseNet161": ClassifierArchitecture("dense.densenet", counts=(6, 12, 36, 24), growth=48),
    "DenseNet169": ClassifierArchitecture("dense.densenet", counts=(6, 12, 32, 32)),
    "DenseNet201": ClassifierArchitecture("dense.densenet", counts=(6, 12, 48, 32)),
    "DPN26": ClassifierArchitecture("dense.dpn", counts=(2, 2, 2, 2)),
    "densenet_cifar": ClassifierArchitecture("dense.densenet", counts=(6, 12, 24, 16), growth=12),
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
    if name not in _ARCHITECTURES and name not in _ZOO:
        raise ConfigError(
            f"model {name!r} is unknown{did_you_mean(name, names())}; there are "
            f"{', '.join(_ARCHITECTURES)}, and those of Gluon's model zoo: {', '.join(_ZOO)}"
        )


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
            features = _ARCHITECTURES[name].features(x)
            x = mx.sym.FullyConnected(features, num_hidden=classes, name="fc_output")
        else:
            block = mx.gluon.model_zoo.vision.get_model(name, classes=classes, prefix="zoo_")
            block.cast(dtype)
            x = block(x)
        return mx.sym.Cast(x, dtype="float32", name="output")
