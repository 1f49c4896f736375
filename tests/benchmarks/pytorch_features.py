"""Features of the PyTorch backbone with given weights, in a process without MXNet."""

from __future__ import annotations

import sys

import numpy as np
import torch

from benchmarks import pytorch_backbone


def main(name: str, exchange: str) -> None:
    network = pytorch_backbone.build(name)
    with np.load(exchange) as arrays:
        images = torch.from_numpy(arrays["images"])
        weights = [arrays[f"weight{place}"] for place in range(len(arrays) - 1)]
    parameters = list(network.parameters())
    assert len(weights) == len(parameters)
    with torch.no_grad():
        for parameter, weight in zip(parameters, weights):
            parameter.copy_(torch.from_numpy(weight.reshape(tuple(parameter.shape))))
        np.save(f"{exchange}.features.npy", network(images).numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
