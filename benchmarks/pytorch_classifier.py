"""Our classifiers' graphs in PyTorch, on images of CIFAR-10's size: inference and training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from typing_extensions import override

from benchmarks import pytorch_graph
from benchmarks.worker import Subject
from runtime.environment import visible_threads

_CLASSES = 10
_IMAGE_SHAPE = (3, 32, 32)


class ClassifierInference(Subject):
    """The forward pass."""

    def __init__(self, folder: str, batch: int, channels_last: bool) -> None:
        """Args: where graph and weights are; images of a step; the memory format."""
        torch.set_num_threads(visible_threads())
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self._network = pytorch_graph.load(Path(folder)).to(memory_format=layout)
        self._network.eval()
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (batch, *_IMAGE_SHAPE)).astype(np.float32)
        self._images = torch.from_numpy(images).to(memory_format=layout)
        self._labels = torch.from_numpy(rng.integers(0, _CLASSES, batch))

    @override
    def step(self) -> None:
        with torch.inference_mode():
            self._network(self._images)


class ClassifierTraining(ClassifierInference):
    """Forward pass, backward pass and update."""

    def __init__(self, folder: str, batch: int, channels_last: bool) -> None:
        """Args: where graph and weights are; images of a step; the memory format."""
        super().__init__(folder, batch, channels_last)
        self._network.train()
        trained = [one for one in self._network.parameters() if one.requires_grad]
        self._optimizer = torch.optim.SGD(trained, lr=1e-3, momentum=0.9, weight_decay=5e-4)

    @override
    def step(self) -> None:
        self._optimizer.zero_grad()
        functional.cross_entropy(self._network(self._images), self._labels).backward()
        self._optimizer.step()
