"""Updates of the PyTorch head, in a process without MXNet; started by the test."""

from __future__ import annotations

import json
import sys

import numpy as np
import torch

from benchmarks.head_case import SEED, HeadCase
from benchmarks.pytorch_head import PyTorchHead
from partial_fc.shard import Sampler, Shard


def main(sizes: dict, updates: int, output: str) -> None:
    case, head = HeadCase(**sizes), PyTorchHead(**sizes)
    sampler = Sampler(Shard(0, 1, case.classes), case.ratio, SEED)
    steps = []
    for update in range(1, updates + 1):
        rows = sampler.sample(case.labels(), update).rows
        steps.append(head.train(torch.from_numpy(rows)))
    losses, gradients = zip(*((float(loss), gradient.numpy()) for loss, gradient in steps))
    np.savez(output, losses=losses, gradients=gradients, centers=head.centers.numpy())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
