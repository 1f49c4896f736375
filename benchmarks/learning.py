r"""How a classifier of ours learns CIFAR-10, epoch by epoch, beside PyTorch by the same recipe.

    python -m benchmarks.learning --data-dir cifar10 [--model ResNet18:3,resnet20:8] \
        [--pytorch-epochs 1] [--models-root DIR] [--plot FILE] [--json FILE]

The runs are those of ``classify.py --dataset cifar10``, one after the other, with the recipe of 200
epochs drawn together to the number behind the model. One that was interrupted goes on, and one that
is complete is not trained again. PyTorch, if it is installed, begins with the same weights and
stops after ``--pytorch-epochs``. The report goes to the standard output.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from backbones import classifiers
from benchmarks import measure, toolkit_classifier, worker
from runtime.command_line import Parser, positive_integer
from runtime.errors import run_program
from training.config import images
from training.config.images import ImageConfig
from training.image_data import ImageData, open_images

_ROOT = Path(__file__).resolve().parents[1]
_MODELS = "ResNet18:3,MobileNetV2:4,resnet20:8"
_SEED = 1


class Epoch(NamedTuple):
    """What one epoch ended with."""

    training: float
    """Accuracy on the crops that it trained on, while the weights changed."""
    correct: int
    """Of the validation images."""
    total: int
    images_per_second: float
    """Of training: the median of what a run reports, NaN if its epochs are shorter than that."""

    @property
    def validation(self) -> float:
        """The accuracy."""
        return self.correct / self.total


Curves = Mapping[str, tuple[Sequence[Epoch], Sequence[Epoch]]]
"""The epochs of each model: ours, and PyTorch's."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Train, print the report, draw the curves and write the rows."""
    options = _parse(argv)
    curves: dict[str, tuple[Sequence[Epoch], Sequence[Epoch]]] = {}
    for model, epochs in options.model.items():
        folder = options.models_root.resolve() / model
        config = images.resolve(
            {
                "dataset": "cifar10",
                "data_dir": str(options.data_dir.resolve()),
                "model": model,
                "epochs": epochs,
                "seed": _SEED,
                "models_root": str(folder),
            }
        )
        metrics = folder / "metrics.jsonl"
        if not metrics.exists() or len(read(metrics)) < epochs:
            _train(config)
        pytorch = _train_pytorch(config, options.pytorch_epochs, folder / "pytorch")
        curves[model] = read(metrics), pytorch
    print("\n\n".join([_introduction(), table(curves)]))
    if options.plot:
        draw(curves, options.plot)
    if options.json:
        measure.write_json(options.json, _rows(curves))


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


def table(curves: Curves) -> str:
    """Lay out the epochs."""
    header = ["model", "epoch", "training accuracy", "validation accuracy", "images/s"]
    lines = []
    for model, (ours, theirs) in curves.items():
        for name, epochs in ((model, ours), (f"{model} in PyTorch", theirs)):
            lines += [
                [
                    name,
                    str(number),
                    f"{epoch.training:.4f}",
                    f"{epoch.validation:.4f} ({epoch.correct:,} of {epoch.total:,})",
                    f"{epoch.images_per_second:.1f}",
                ]
                for number, epoch in enumerate(epochs, 1)
            ]
    return measure.markdown_table(header, lines)


def draw(curves: Curves, path: Path) -> None:
    """Draw the validation accuracy after each epoch."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for color, (model, (ours, theirs)) in enumerate(curves.items()):
        for name, epochs, mark in ((model, ours, "o-"), (f"{model}, PyTorch", theirs, "x--")):
            if epochs:
                accuracies = [epoch.validation for epoch in epochs]
                numbers = range(1, len(epochs) + 1)
                axes.plot(numbers, accuracies, mark, color=f"C{color}", label=name)
    axes.set(xlabel="epoch", ylabel="accuracy on the validation images", ylim=(0, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def _train(config: ImageConfig) -> None:
    """Run ``classify.py`` until it has trained to the end."""
    chosen = {
        "dataset": "cifar10",
        "data-dir": config.data.data_dir,
        "model": config.classifier.model,
        "epochs": config.schedule.epochs,
        "seed": config.run.seed,
        "models-root": config.run.models_root,
    }
    words = [word for name, value in chosen.items() for word in (f"--{name}", str(value))]
    done = subprocess.run([sys.executable, "classify.py", *words], cwd=_ROOT, stdout=sys.__stderr__)
    if done.returncode:
        # It has said why.
        sys.exit(done.returncode)


def _train_pytorch(config: ImageConfig, epochs: int, folder: Path) -> list[Epoch]:
    """Train in PyTorch, unless a former call did; no epochs where it is not installed."""
    python = worker.pytorch_python()
    if python is None or not epochs:
        return []
    done = folder / "epochs.jsonl"
    if not done.exists() or len(done.read_text().splitlines()) < epochs:
        folder.mkdir(parents=True, exist_ok=True)
        prepare(config, epochs, folder)
        output = subprocess.run(
            [python, "-m", "benchmarks.pytorch_learning", str(folder)],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        done.write_text(output)
    return [_pytorch_epoch(json.loads(line)) for line in done.read_text().splitlines()[:epochs]]


def _pytorch_epoch(record: Mapping[str, Any]) -> Epoch:
    return Epoch(
        record["hits"] / record["images"],
        record["validation_hits"],
        record["validation_images"],
        record["images"] / record["seconds"],
    )


def prepare(config: ImageConfig, epochs: int, folder: Path) -> None:
    """Write what ``benchmarks.pytorch_learning`` reads: graph, weights, images, learning rates."""
    dataset = open_images(config.data, config.run.seed)
    model, seed = config.classifier.model, config.run.seed
    toolkit_classifier.write_graph(model, folder, dataset.normalization, seed)
    counts = _write_images(dataset, folder)
    batch_size = config.data.batch_size
    schedule = config.schedule.build(1, counts // batch_size)
    updates = config.schedule.total_updates(counts // batch_size)
    recipe = {
        "epochs": epochs,
        "batch_size": batch_size,
        "momentum": config.optimizer.momentum,
        "wd": config.optimizer.wd,
        "lr": [schedule(update) for update in range(updates)],
    }
    (folder / "recipe.json").write_text(json.dumps(recipe))


def _write_images(dataset: ImageData, folder: Path) -> int:
    """Write all images, decoded; returns how many are there to train on."""
    for part, image_set in (("training", dataset.training), ("validation", dataset.validation)):
        decoded, labels = zip(*(image_set.decoded(index) for index in range(len(image_set))))
        planes = np.stack(decoded).transpose(0, 3, 1, 2)
        np.save(folder / f"{part}_images.npy", np.ascontiguousarray(planes))
        np.save(folder / f"{part}_labels.npy", np.array(labels, np.int64))
    return len(dataset.training)


def _rows(curves: Curves) -> list[measure.Row]:
    return [
        measure.Row(f"{model}, epoch {number}", name, epoch.validation, "accuracy")
        for model, both in curves.items()
        for name, epochs in zip(("ours", "pytorch"), both)
        for number, epoch in enumerate(epochs, 1)
    ]


def _introduction() -> str:
    return f"""# Learning CIFAR-10

{measure.machine()}

`--dataset cifar10` with the learning rate's cosine over the epochs of each model, seed {_SEED}, one
run of each; PyTorch with the same recipe and first weights, stopped earlier. Images/s are those of
training as it went, whatever else the machine did."""


def _models(text: str) -> dict[str, int]:
    pairs = (word.strip().partition(":") for word in text.split(","))
    chosen = {model: positive_integer(epochs or "1") for model, _, epochs in pairs}
    for model in chosen:
        classifiers.check(model)
    return chosen


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(prog="python -m benchmarks.learning", description="Learn CIFAR-10.")
    parser.add_argument("--data-dir", type=Path, required=True, help="as for classify.py")
    parser.add_argument(
        "--model", type=_models, default=_MODELS, help="names:epochs, by commas (%(default)s)"
    )
    parser.add_argument(
        "--pytorch-epochs", type=int, default=1, help="of each model; 0 is none (%(default)s)"
    )
    parser.add_argument(
        "--models-root",
        type=Path,
        default=Path("models/learning"),
        help="where the runs go (%(default)s)",
    )
    parser.add_argument("--plot", type=measure.file_to_write, metavar="FILE", help="draw curves")
    parser.add_argument("--json", type=measure.file_to_write, metavar="FILE", help="write rows")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_program(main)
