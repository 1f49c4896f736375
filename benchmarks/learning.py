r"""How a classifier of ours learns CIFAR-10, epoch by epoch, beside PyTorch by the same recipe.

    python -m benchmarks.learning --data-dir cifar10 [--model ResNet18:3,resnet20:8] \
        [--pytorch-epochs 1] [--models-root DIR]

The runs are those of ``classify.py --dataset cifar10``, one after the other, with the recipe of 200
epochs drawn together to the number behind the model; they resume. PyTorch, if it is installed,
begins with the same weights and stops after ``--pytorch-epochs``. The report goes to the standard
output.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np

from backbones import classifiers
from benchmarks import measure, toolkit_subjects
from benchmarks.worker import ROOT
from runtime.command_line import Parser, positive_integer
from runtime.errors import run_program
from training.config import images
from training.config.images import ImageConfig
from training.image_data import open_images

_MODELS = "ResNet18:3,MobileNetV2:4,resnet20:8"
_SEED = 1
_SAID = f"""`--dataset cifar10` with the learning rate's cosine over the epochs of each model, seed
{_SEED}, one run of each; PyTorch with the same recipe and first weights, stopped earlier. Images/s
are those of training as it went, whatever else the machine did."""


class Epoch(NamedTuple):
    """The results of one epoch.

    Attributes:
        training: accuracy on the crops that it trained on, while the weights changed.
        correct: of the validation images.
        total: of these.
        images_per_second: of training: the median of what a run reports, NaN if its epochs are
            shorter than that.
    """

    training: float
    correct: int
    total: int
    images_per_second: float


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Train and print the report."""
    options = _parse(argv)
    lines = []
    for model, epochs in options.model.items():
        folder = options.models_root.resolve() / model
        chosen: dict[str, Any] = {"dataset": "cifar10", "data_dir": str(options.data_dir.resolve())}
        chosen |= {"model": model, "epochs": epochs, "seed": _SEED, "models_root": str(folder)}
        named = ((f"--{name.replace('_', '-')}", str(value)) for name, value in chosen.items())
        command = [sys.executable, "classify.py", *(word for pair in named for word in pair)]
        done = subprocess.run(command, cwd=ROOT, stdout=sys.__stderr__)
        if done.returncode:
            # It has said why.
            sys.exit(done.returncode)
        theirs: list[Epoch] = []
        if options.pytorch_epochs and measure.pytorch_python():
            config = images.resolve(chosen)
            theirs = _train_pytorch(config, options.pytorch_epochs, folder / "pytorch")
        ours = read(folder / "metrics.jsonl")
        for name, found in ((model, ours), (f"{model} in PyTorch", theirs)):
            lines += [_line(name, number, epoch) for number, epoch in enumerate(found, 1)]
    header = ["model", "epoch", "training accuracy", "validation accuracy", "images/s"]
    measure.print_report("Learning CIFAR-10", _SAID, [measure.markdown_table(header, lines)])


def read(metrics: Path) -> list[Epoch]:
    """The epochs of a run of ours; an epoch that was trained twice counts as it ended last."""
    epochs: dict[int, Epoch] = {}
    speeds: list[float] = []
    for line in metrics.read_text().splitlines():
        record = json.loads(line)
        # A run that is resumed behind its end validates once more and has trained on nothing.
        if record.get("target") == "validation" and record["training_accuracy"] is not None:
            epochs[record["update"]] = Epoch(
                record["training_accuracy"],
                int(record["correct"]),
                int(record["total"]),
                statistics.median(speeds or [math.nan]),
            )
            speeds = []
        elif "images_per_second" in record:
            speeds.append(record["images_per_second"])
    return [epochs[update] for update in sorted(epochs)]


def _line(name: str, number: int, epoch: Epoch) -> list[str]:
    validation = f"{epoch.correct / epoch.total:.4f} ({epoch.correct:,} of {epoch.total:,})"
    speed = f"{epoch.images_per_second:.1f}"
    return [name, str(number), f"{epoch.training:.4f}", validation, speed]


def _train_pytorch(config: ImageConfig, epochs: int, folder: Path) -> list[Epoch]:
    """Train in PyTorch, unless a former call did."""
    done = folder / "epochs.jsonl"
    if not done.exists() or len(done.read_text().splitlines()) < epochs:
        folder.mkdir(parents=True, exist_ok=True)
        _prepare(config, epochs, folder)
        words = [str(measure.pytorch_python()), "-m", "benchmarks.pytorch_learning", str(folder)]
        done.write_text(subprocess.check_output(words, cwd=ROOT, text=True))
    return [Epoch(**json.loads(line)) for line in done.read_text().splitlines()[:epochs]]


def _prepare(config: ImageConfig, epochs: int, folder: Path) -> None:
    """Write what ``benchmarks.pytorch_learning`` reads: graph, weights, images, learning rates."""
    dataset = open_images(config.data, config.run.seed)
    normalization, seed = dataset.normalization, config.run.seed
    toolkit_subjects.write_files(
        config.classifier.model, folder, normalization=normalization, seed=seed
    )
    for part, transformed in (("training", dataset.training), ("validation", dataset.validation)):
        image_set = transformed.dataset
        decoded, labels = zip(*(image_set.decoded(index) for index in range(len(image_set))))
        planes = np.stack(decoded).transpose(0, 3, 1, 2)
        np.save(folder / f"{part}_images.npy", np.ascontiguousarray(planes))
        np.save(folder / f"{part}_labels.npy", np.array(labels, np.int64))
    per_epoch = len(dataset.training.dataset) // config.data.batch_size
    schedule = config.schedule.build(1, per_epoch)
    updates = config.schedule.total_updates(per_epoch)
    recipe = {
        "epochs": epochs,
        "batch_size": config.data.batch_size,
        "momentum": config.optimizer.momentum,
        "wd": config.optimizer.wd,
        "lr": [schedule(update) for update in range(updates)],
    }
    (folder / "recipe.json").write_text(json.dumps(recipe))


def _models(text: str) -> dict[str, int]:
    pairs = (word.strip().partition(":") for word in text.split(","))
    chosen = {model: positive_integer(epochs or "1") for model, _, epochs in pairs}
    for model in chosen:
        classifiers.check(model)
    return chosen


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(prog="python -m benchmarks.learning", description="Learn CIFAR-10.")
    add = parser.add_argument
    add("--data-dir", type=Path, required=True, help="as for classify.py")
    add("--model", type=_models, default=_MODELS, help="names:epochs, by commas (%(default)s)")
    epochs_help = "of each model; 0 is none (%(default)s)"
    add("--pytorch-epochs", type=int, default=1, help=epochs_help)
    root_help = "where the runs go (%(default)s)"
    add("--models-root", type=Path, default=Path("models/learning"), help=root_help)
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_program(main)
