"""Outputs and gradients of a graph in PyTorch, in a process without MXNet."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from benchmarks import pytorch_graph


def main(name: str) -> None:
    folder = Path(name)
    network = pytorch_graph.load(folder)
    images = torch.from_numpy(np.load(folder / "images.npy"))
    # Before training: PyTorch keeps another variance, divided by n - 1.
    network.eval()
    with torch.no_grad():
        inferred = network(images)
    network.train()
    output = network(images)
    output.backward(torch.from_numpy(np.load(folder / "gradient.npy")))
    np.savez(
        folder / "answer.npz",
        output=output.detach().numpy(),
        inferred=inferred.numpy(),
        gradients=np.concatenate(
            [one.grad.numpy().ravel() for one in network.parameters() if one.requires_grad]
        ),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
