"""arcface_torch's r18, written again, as a program: ``torch_iresnet.py TENSORS.npz IMAGES.npy``.

It runs where PyTorch is and this toolkit is not, takes the tensors by arcface_torch's names, and
replaces the images by their embeddings.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(given)
        self.conv1 = nn.Conv2d(given, made, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(made)
        self.prelu = nn.PReLU(made)
        self.conv2 = nn.Conv2d(made, made, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(made)
        self.downsample: Any = None
        if stride > 1:
            project = nn.Conv2d(given, made, 1, stride, bias=False)
            self.downsample = nn.Sequential(project, nn.BatchNorm2d(made))

    def forward(self, x: Any) -> Any:
        y = self.bn3(self.conv2(self.prelu(self.bn2(self.conv1(self.bn1(x))))))
        return y + (x if self.downsample is None else self.downsample(x))


class Network(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1, self.prelu = nn.BatchNorm2d(64), nn.PReLU(64)
        given = 64
        for stage, made in enumerate((64, 128, 256, 512), 1):
            blocks = nn.Sequential(Block(given, made, 2), Block(made, made, 1))
            setattr(self, f"layer{stage}", blocks)
            given = made
        self.bn2 = nn.BatchNorm2d(512)
        self.fc = nn.Linear(512 * 49, size)
        self.features = nn.BatchNorm1d(size)

    def forward(self, x: Any) -> Any:
        x = self.prelu(self.bn1(self.conv1(x)))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return self.features(self.fc(torch.flatten(self.bn2(x), 1)))


def main() -> None:
    tensors_file, images_file = sys.argv[1:]
    state = {name: torch.from_numpy(array) for name, array in np.load(tensors_file).items()}
    network = Network(len(state["fc.bias"])).eval()
    # Every name, in this order.
    assert list(network.state_dict()) == list(state)
    network.load_state_dict(state, strict=True)
    images = torch.from_numpy(np.load(images_file)).float()
    with torch.no_grad():
        np.save(images_file, network((images - 127.5) / 127.5).numpy())


if __name__ == "__main__":
    main()
