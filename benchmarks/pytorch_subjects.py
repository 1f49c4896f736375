"""PyTorch's part of the comparisons: networks from the toolkit's files, and the head.

Networks come from the files that ``toolkit_subjects`` has written. The head uses PyTorch's calls
for several formulas (normalize, linear), changes the logits of the targets alone for the margin,
and computes softmax and update in place, the latter on the sampled rows. The columns of the logits
are on several ranks, so the softmax is written with its maxima and sums, which the ranks would have
to reduce: ``cross_entropy`` cannot do that. The results are those of the toolkit's head.

Shapes: B global batch, D embedding, S sampled rows, C classes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from typing_extensions import override

from benchmarks import head_case, pytorch_graph
from benchmarks.head_case import HeadCase
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


class PyTorchHead(Subject):
    """All class centers of a job on one rank, in PyTorch tensors."""

    def __init__(self, *, compiled: bool, channels_last: bool, **sizes: Any) -> None:
        """Args: whether it is compiled; False, as it has no maps; sizes of a ``HeadCase``."""
        assert not channels_last
        torch.set_num_threads(visible_threads())
        torch.manual_seed(head_case.SEED)
        case = HeadCase(**sizes)
        self.centers = torch.from_numpy(case.centers())
        self._momenta = torch.zeros_like(self.centers).fill_(0.0)
        self._features = torch.from_numpy(case.features())
        self._labels = torch.from_numpy(case.labels())
        self._num_rows = case.rows
        self._train = torch.compile(self._update) if compiled else self._update

    @override
    def step(self) -> None:
        self._train(self._sample())

    def _update(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Update the sorted ``rows`` [S]; returns the loss and the features' gradient [B, D]."""
        everything = rows.numel() == self.centers.shape[0]
        centers_SD = self.centers if everything else self.centers[rows]
        momenta_SD = self._momenta if everything else self._momenta[rows]
        targets_B = torch.searchsorted(rows, self._labels)

        loss, gradient_BD, gradient_SD = self._differentiate(centers_SD, targets_B)
        gradient_SD.add_(centers_SD, alpha=head_case.WEIGHT_DECAY)
        momenta_SD.mul_(head_case.MOMENTUM).add_(gradient_SD, alpha=-head_case.LEARNING_RATE)
        centers_SD.add_(momenta_SD)
        if not everything:
            self.centers[rows] = centers_SD
            self._momenta[rows] = momenta_SD
        return loss, gradient_BD

    def _differentiate(
        self, centers_SD: torch.Tensor, targets_B: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        features_BD = self._features.detach().requires_grad_()
        leaf_SD = centers_SD.detach().requires_grad_()
        cosines_BS = functional.linear(
            functional.normalize(features_BD), functional.normalize(leaf_SD)
        )
        entries = (torch.arange(targets_B.numel()), targets_B)
        cosines_BS.index_put_(entries, torch.tensor(-head_case.MARGIN), accumulate=True)
        logits_BS = head_case.SCALE * cosines_BS

        softmax_BS = logits_BS.detach()
        softmax_BS.sub_(softmax_BS.amax(1, keepdim=True)).exp_()
        softmax_BS.div_(softmax_BS.sum(1, keepdim=True))
        loss = -softmax_BS[entries].log().mean()
        softmax_BS[entries] -= 1.0
        softmax_BS.div_(targets_B.numel())
        gradient_BD, gradient_SD = torch.autograd.grad(
            logits_BS, (features_BD, leaf_SD), grad_outputs=softmax_BS
        )
        return loss, gradient_BD, gradient_SD

    def _sample(self) -> torch.Tensor:
        """All positives and the negatives with the highest of random scores."""
        num_classes = self.centers.shape[0]
        if self._num_rows == num_classes:
            return torch.arange(num_classes)
        scores = torch.rand(num_classes)
        scores[self._labels] = 2.0
        return torch.topk(scores, self._num_rows, sorted=False).indices.sort().values
