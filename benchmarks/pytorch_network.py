"""A network of ours in PyTorch, from the files that ``toolkit_network`` has written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from typing_extensions import override

from benchmarks import pytorch_graph
from benchmarks.worker import Subject
from runtime.environment import visible_threads


class PyTorchInference(Subject):
    """The forward pass."""

    def __init__(
        self, folder: str, compiled: bool, channels_last: bool, dtype: str = "float32"
    ) -> None:
        """Build the network.

        Args:
            folder: where the files are.
            compiled: whether it goes through ``torch.compile``.
            channels_last: the memory format of its maps.
            dtype: bfloat16 computes in it wherever PyTorch recommends it (autocast).
        """
        torch.set_num_threads(visible_threads())
        layout = torch.channels_last if channels_last else torch.contiguous_format
        with np.load(Path(folder) / "batch.npz") as batch:
            images = torch.from_numpy(batch["images"].astype(np.float32))
            self._gradient = torch.from_numpy(batch["gradient"])
        self._images = images.to(memory_format=layout)
        self._network = pytorch_graph.load(Path(folder)).to(memory_format=layout)
        self._network.train(isinstance(self, PyTorchTraining))
        self._compute = torch.compile(self._network) if compiled else self._network
        self._is_narrow = dtype == "bfloat16"

    def _outputs(self) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._is_narrow):
            return self._compute(self._images)

    @override
    def step(self) -> None:
        with torch.inference_mode():
            self._outputs()


class PyTorchTraining(PyTorchInference):
    """Forward pass, backward pass and update."""

    def __init__(self, folder: str, compiled: bool, channels_last: bool, **options: str) -> None:
        """Args: as above."""
        super().__init__(folder, compiled, channels_last, **options)
        trained = [one for one in self._network.parameters() if one.requires_grad]
        self._optimizer = torch.optim.SGD(trained, lr=1e-3, momentum=0.9, weight_decay=5e-4)

    @override
    def step(self) -> None:
        self._optimizer.zero_grad()
        self._outputs().float().backward(self._gradient)
        self._optimizer.step()
