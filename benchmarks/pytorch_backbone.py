"""The toolkit's backbones in PyTorch's layers, trained by its optimizer.

The memory format is "channels last", which PyTorch recommends for convolutions on a CPU. The
parameters come in the order of our graphs, so that weights can be carried over.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from typing_extensions import override

from benchmarks.backbone_case import (
    EMBEDDING,
    LEARNING_RATE,
    MOMENTUM,
    SEED,
    WEIGHT_DECAY,
    BackboneCase,
)
from benchmarks.worker import Subject
from runtime.environment import visible_threads

IRESNET_UNITS = {
    "r18": (2, 2, 2, 2),
    "r34": (3, 4, 6, 3),
    "r50": (3, 4, 14, 3),
    "r100": (3, 13, 30, 3),
}
_IRESNET_EPSILON = 2e-5
_MOBILE_EPSILON = 1e-3
# Of each stage of a MobileFaceNet: expansion of the first unit and of the others, units, channels.
_MOBILE_STAGES = ((128, 128, 4, 64), (256, 256, 6, 128), (512, 256, 2, 128))


class PyTorchBackbone(Subject):
    """A network of ``backbone_case.PYTORCH_NETWORKS``."""

    def __init__(self, **sizes: Any) -> None:
        """Args: the fields of a ``BackboneCase``."""
        torch.set_num_threads(visible_threads())
        torch.manual_seed(SEED)
        case = BackboneCase(**sizes)
        self._is_narrow = case.dtype == "bfloat16"
        layout = torch.channels_last
        self.network = build(case.network).to(memory_format=layout)
        self._images = torch.from_numpy(case.images()).to(memory_format=layout)
        self._gradient = torch.from_numpy(case.gradient())
        self._optimizer = torch.optim.SGD(
            [parameter for parameter in self.network.parameters() if parameter.requires_grad],
            lr=LEARNING_RATE,
            momentum=MOMENTUM,
            weight_decay=WEIGHT_DECAY,
        )

    @override
    def step(self) -> None:
        self._optimizer.zero_grad()
        # bfloat16 wherever PyTorch recommends it.
        with torch.autocast("cpu", torch.bfloat16, enabled=self._is_narrow):
            features = self.network(self._images)
        features.float().backward(self._gradient)
        self._optimizer.step()


class FaceNetwork(nn.Module):
    """Normalization of the pixels, the layers of ``body``, and the embedding."""

    def __init__(self, body: nn.Module, outputs: int) -> None:
        """Args: the layers, and how many numbers they put out per image."""
        super().__init__()
        self.body = body
        self.linear = nn.Linear(outputs, EMBEDDING)
        self.norm = nn.BatchNorm1d(EMBEDDING, eps=_IRESNET_EPSILON)
        self.norm.weight.requires_grad_(False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return features [B, D] of images [B, 3, height, width], 0-255."""
        maps = self.body((images - 127.5) * 0.0078125)
        return self.norm(self.linear(torch.flatten(maps, 1)))


class Sum(nn.Module):
    """A residual and its shortcut."""

    def __init__(self, residual: nn.Module, shortcut: nn.Module) -> None:
        """Args: the two branches."""
        super().__init__()
        self.residual = residual
        self.shortcut = shortcut

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the sum of both branches."""
        return self.residual(maps) + self.shortcut(maps)


def build(name: str) -> nn.Module:
    """Return a network for 112x112 pixels by its name in ``backbone_case.PYTORCH_NETWORKS``."""
    if name == "mbf":
        return FaceNetwork(_mobilefacenet(), 512)
    return FaceNetwork(_iresnet(IRESNET_UNITS[name]), 512 * 7 * 7)


def _iresnet(units: tuple[int, ...]) -> nn.Module:
    channels = 64
    layers = [_convolution(3, channels, 3), _norm(channels), nn.PReLU(channels)]
    for count, outputs in zip(units, (64, 128, 256, 512)):
        for unit in range(count):
            layers.append(_residual_unit(channels, outputs, stride=2 if unit == 0 else 1))
            channels = outputs
    return nn.Sequential(*layers, _norm(channels))


def _residual_unit(inputs: int, outputs: int, stride: int) -> nn.Module:
    residual = nn.Sequential(
        _norm(inputs),
        _convolution(inputs, outputs, 3),
        _norm(outputs),
        nn.PReLU(outputs),
        _convolution(outputs, outputs, 3, stride),
        _norm(outputs),
    )
    if stride == 1:
        return Sum(residual, nn.Identity())
    return Sum(residual, nn.Sequential(_convolution(inputs, outputs, 1, stride), _norm(outputs)))


def _mobilefacenet() -> nn.Module:
    channels = 64
    layers = [_mobile_unit(3, channels, 3, 2), _mobile_unit(channels, channels, 3, groups=channels)]
    for first_expansion, expansion, count, outputs in _MOBILE_STAGES:
        layers.append(_bottleneck(channels, first_expansion, outputs, stride=2))
        channels = outputs
        for _ in range(count):
            layers.append(Sum(_bottleneck(channels, expansion, channels), nn.Identity()))
    return nn.Sequential(
        *layers,
        _mobile_unit(channels, 512, 1),
        nn.Conv2d(512, 512, 7, groups=512, bias=False),
        _norm(512, _MOBILE_EPSILON),
    )


def _bottleneck(inputs: int, expansion: int, outputs: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        _mobile_unit(inputs, expansion, 1),
        _mobile_unit(expansion, expansion, 3, stride, groups=expansion),
        _convolution(expansion, outputs, 1),
        _norm(outputs, _MOBILE_EPSILON),
    )


def _mobile_unit(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Module:
    convolution = _convolution(inputs, outputs, kernel, stride, groups)
    return nn.Sequential(convolution, _norm(outputs, _MOBILE_EPSILON), nn.PReLU(outputs))


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Module:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


def _norm(channels: int, epsilon: float = _IRESNET_EPSILON) -> nn.Module:
    return nn.BatchNorm2d(channels, eps=epsilon)
