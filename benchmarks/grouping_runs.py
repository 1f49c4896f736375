"""Jobs of ``benchmarks.grouping_worker`` under the launcher, and their accuracy over time.

All schemes train on the same images with the same options; only groups of unequal workers read
unequal shares, which belongs to that scheme.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from backbones.classifiers.classifier import Classifier
from backbones.options import ClassifierOptions
from benchmarks.training_runs import run_all
from parallel import grouping
from parallel.launch.cluster_files import Groups, format_groups
from parallel.launch.data_sharding import format_shares
from parallel.world import LoneWorld
from runtime.mxnet import mx
from training.config import images
from training.image_data import open_images
from training.validator import count_batch

SCHEMES = {"dist_sync": "BSP", "dist_async": "ASP", "dist_ssync": "SSP", "dist_gsync": "GSP"}
_DATASET = "mnist_cosine"
# Evaluating weights takes longer than a training step: one of so many that were saved is.
_COARSE, _SPARSE = 4, 20
_EVALUATION_BATCH = 250
# As MXNet-G's scripts compare them: one rate for an update of every scheme (bsp_*.sh and gsp_*.sh
# differ in --kv-store alone), a weight decay (of train_cifar10_resnet.py), hardly a warm-up.
_PROTOCOL = ("--lr", "0.015", "--wd", "0.0001", "--warmup-epochs", "0.1", "--no-lr-scaling")
_ADDRESS = "127.0.0.1"


@dataclass(frozen=True)
class GroupingCase:
    """The training, and the cluster that it runs on."""

    data_dir: Path
    """With the files of MNIST."""
    slowdown: tuple[float, ...]
    """How many times each worker is slowed down."""
    servers: int
    epochs: int
    staleness: int
    """The bound of SSP."""
    target: float
    """The accuracy to be reached."""

    @property
    def groups(self) -> Groups:
        """The groups of workers of these speeds."""
        return grouping.group(self._speeds)

    @property
    def shares(self) -> str:
        """The file ``data_sharding`` of these groups."""
        addresses = (_ADDRESS,) * len(self.slowdown)
        return format_shares(grouping.shares(self.groups, self._speeds), addresses)

    @property
    def _speeds(self) -> list[float]:
        return [1 / factor for factor in self.slowdown]


class GroupingRun(NamedTuple):
    """The result of one job; seconds since the first step of its first worker."""

    seconds: tuple[float, ...]
    """When worker 0 had the weights that were evaluated; the last number is the end of the job."""
    accuracies: tuple[float, ...]
    """On the validation images, of these weights."""
    updates: int
    """Of the weights."""
    staleness: float
    """Mean over all pushes."""

    @property
    def final(self) -> float:
        """Accuracy at the end."""
        return self.accuracies[-1]

    def seconds_to(self, target: float) -> float:
        """When an accuracy was reached first; infinite if never."""
        reached = (s for s, accuracy in zip(self.seconds, self.accuracies) if accuracy >= target)
        return next(reached, math.inf)


def run(case: GroupingCase, scheme: str, seed: int) -> GroupingRun:
    """Train once.

    Raises:
        RuntimeError: the job failed; with its output.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        command = _command(case, scheme, folder, _options(case, scheme, seed, folder))
        # The workers share the processors: each uses one, the servers use the others.
        threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        run_all([(command, {**os.environ, **threads})])
        return _read(case, scheme, folder)


def evaluator(data_dir: Path) -> Callable[[Path], float]:
    """Return a function for the accuracy of weights in a file, on all validation images."""
    given = {"dataset": _DATASET, "data_dir": str(data_dir), "batch_size": _EVALUATION_BATCH}
    config = images.resolve(given)
    dataset = open_images(config.data, config.run.seed)
    classifier = Classifier.create(
        ClassifierOptions(model=config.classifier.model),
        classes=dataset.num_classes,
        image_shape=dataset.shape,
        normalization=dataset.normalization,
        seed=0,
    )
    batches = list(dataset.validation_batches(config.data, LoneWorld()))

    def accuracy(path: Path) -> float:
        with np.load(path) as weights:
            for name, parameter in classifier.parameters.items():
                parameter.set_data(mx.nd.array(weights[name]))
        infer = classifier.inference()
        sums = np.sum([count_batch(infer, batch) for batch in batches], axis=0)
        return float(sums[1] / sums[3])

    return accuracy


def _options(case: GroupingCase, scheme: str, seed: int, folder: Path) -> list[str]:
    more = {"dist_ssync": ["--staleness", str(case.staleness)]}
    more["dist_gsync"] = ["--data-allocator", "1"]
    return [
        *("--dataset", _DATASET, "--data-dir", str(case.data_dir), "--kv-store", scheme),
        *("--epochs", str(case.epochs), "--seed", str(seed), "--models-root", str(folder)),
        # Validation and saving happen at the end only, outside of the measured time.
        *("--eval-frequency", str(case.epochs), "--save-frequency", "0", "--keep", "0"),
        *more.get(scheme, []),
        *_PROTOCOL,
    ]


def _command(case: GroupingCase, scheme: str, folder: Path, options: Sequence[str]) -> list[str]:
    workers = len(case.slowdown)
    launcher = [sys.executable, "-m", "parallel.launch", "-n", str(workers)]
    launcher += ["-s", str(case.servers)]
    if scheme == "dist_gsync":
        files = {"groups": format_groups(case.groups, (_ADDRESS,) * workers)}
        files["data-sharding"] = case.shares
        for name, text in files.items():
            (folder / name).write_text(text)
            launcher += [f"--{name}", str(folder / name)]
    factors = ",".join(map(str, case.slowdown))
    worker = [sys.executable, "-m", "benchmarks.grouping_worker", str(folder), factors, *options]
    return [*launcher, "--", *worker]


def _read(case: GroupingCase, scheme: str, folder: Path) -> GroupingRun:
    workers = range(len(case.slowdown))
    times = [list(map(float, (folder / f"steps-{k}").read_text().split())) for k in workers]
    begin = min(one[0] for one in times)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    final = [record for record in records if record.get("target") == "validation"][-1]
    stale = [record["staleness"] for record in records if "staleness" in record]
    saved = sorted(folder.glob("*.npz"), key=lambda path: float(path.stem))
    found: dict[int, float] = {}
    accuracy = evaluator(case.data_dir)

    def is_good(number: int) -> bool:
        found[number] = accuracy(saved[number])
        return found[number] >= case.target

    # Every few until the target is reached, all just before, then fewer.
    reached = next(filter(is_good, range(0, len(saved), _COARSE)), len(saved))
    any(map(is_good, range(max(0, reached - _COARSE + 1), reached)))
    for number in range(reached + _SPARSE, len(saved), _SPARSE):
        is_good(number)
    curve = [(float(saved[number].stem) - begin, found[number]) for number in sorted(found)]
    curve.append((max(one[-1] for one in times) - begin, final["accuracy"]))
    seconds, accuracies = zip(*curve)
    return GroupingRun(seconds, accuracies, _updates(case, scheme, times), stale[-1])


def _updates(case: GroupingCase, scheme: str, times: Sequence[Sequence[float]]) -> int:
    """The updates: one per push, but the servers add up the pushes of a group."""
    pushers: Sequence[int] = range(len(times))
    if scheme == "dist_sync":
        pushers = [0]
    elif scheme == "dist_gsync":
        pushers = [min(group) for group in case.groups]
    return sum(len(times[pusher]) - 1 for pusher in pushers)
