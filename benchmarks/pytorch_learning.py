"""Train a classifier in PyTorch by the recipe of ``--dataset cifar10``; one line of JSON an epoch.

    python -m benchmarks.pytorch_learning FOLDER

The folder has what ``benchmarks.learning`` wrote: the graph and its first weights, the images, and
the learning rate of each update. The recipe is ours to the letter: a crop of 32 out of 40 pixels,
mirrored half of the time, the last partial batch dropped, no weight decay on biases and BatchNorm.
Only the order of the images and the crops come from another generator.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from benchmarks import pytorch_graph
from runtime.environment import visible_threads

_BORDER = 4


def main(name: str) -> None:
    """Train, and print each epoch when it is over."""
    torch.set_num_threads(visible_threads())
    folder = Path(name)
    recipe = json.loads((folder / "recipe.json").read_text())
    network = pytorch_graph.load(folder).to(memory_format=torch.channels_last)
    training, validation = (
        (np.load(folder / f"{part}_images.npy"), np.load(folder / f"{part}_labels.npy"))
        for part in ("training", "validation")
    )
    layers = (torch.nn.Conv2d, torch.nn.Linear)
    decaying = [layer.weight for layer in network.modules() if isinstance(layer, layers)]
    known = {id(parameter) for parameter in decaying}
    others = [one for one in network.parameters() if one.requires_grad and id(one) not in known]
    optimizer = torch.optim.SGD(
        [{"params": decaying, "weight_decay": recipe["wd"]}, {"params": others}],
        lr=0.1,
        momentum=recipe["momentum"],
    )
    rates, updates = iter(recipe["lr"]), len(training[1]) // recipe["batch_size"]
    for epoch in range(recipe["epochs"]):
        start = time.perf_counter()
        network.train()
        hits = 0
        for images, labels in _batches(*training, recipe["batch_size"], epoch):
            optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = next(rates)
            logits = network(images)
            optimizer.zero_grad()
            functional.cross_entropy(logits, labels).backward()
            optimizer.step()
            hits += int((logits.argmax(1) == labels).sum())
        trained = time.perf_counter() - start
        seen = updates * recipe["batch_size"]
        counts = {"correct": _correct(network, *validation), "total": len(validation[1])}
        speeds = {"training": hits / seen, "images_per_second": seen / trained}
        print(json.dumps({**counts, **speeds}), flush=True)


def _batches(
    images: NDArray[np.uint8], labels: NDArray[np.int64], size: int, epoch: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Shifted crops of the images [n, 3, height, width], mirrored half of the time."""
    generator = np.random.default_rng((1, epoch))
    order = generator.permutation(len(images))
    height, width = images.shape[2:]
    border = ((0, 0), (0, 0), (_BORDER, _BORDER), (_BORDER, _BORDER))
    for begin in range(0, len(order) - size + 1, size):
        rows = order[begin : begin + size]
        padded = np.pad(images[rows], border)
        shifts = generator.integers(2 * _BORDER + 1, size=(size, 2))
        cut = np.stack(
            [
                one[:, top : top + height, left : left + width]
                for one, (top, left) in zip(padded, shifts)
            ]
        )
        mirrored = generator.random(size) < 0.5
        cut[mirrored] = cut[mirrored, :, :, ::-1]
        batch = torch.from_numpy(cut).float().to(memory_format=torch.channels_last)
        yield batch, torch.from_numpy(labels[rows])


@torch.no_grad()
def _correct(network: torch.nn.Module, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> int:
    network.eval()
    hits = 0
    for rows in np.array_split(np.arange(len(images)), max(1, len(images) // 250)):
        batch = torch.from_numpy(images[rows]).float().to(memory_format=torch.channels_last)
        hits += int((network(batch).argmax(1) == torch.from_numpy(labels[rows])).sum())
    return hits


if __name__ == "__main__":
    main(*sys.argv[1:])
