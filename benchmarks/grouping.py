"""BSP, ASP, SSP and GSP on unequal workers of one machine: accuracy over wall-clock time.

    python -m benchmarks.grouping --data-dir mnist [--slowdown 1,1,4,4]

Slow machines are simulated: their workers sleep for a multiple of the processor time that their
steps take. Groups and shares are computed from these factors as ``python -m parallel.autogroup``
computes them from measured speeds. All schemes train on the same images with the same options; only
groups of unequal workers read unequal shares, which belongs to that scheme. Worker 0 saves its
weights every few steps; they are evaluated after the run, outside of the measured time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Optional

import numpy as np

from backbones.model import Classifier
from backbones.options import ClassifierOptions
from benchmarks import measure
from benchmarks.training_runs import run_all
from parallel import autogroup
from parallel.launch.cluster_files import Groups, format_groups, format_shares
from parallel.world import LoneWorld
from runtime.command_line import Parser, positive_integer
from runtime.errors import run_program
from runtime.mxnet import mx
from training.config import images
from training.image_data import open_images
from training.validation import count

SCHEMES = {"dist_sync": "BSP", "dist_async": "ASP", "dist_ssync": "SSP", "dist_gsync": "GSP"}
_DATASET = "mnist_cosine"
_EVALUATION_BATCH = 250
# As MXNet-G's scripts compare them: one rate for an update of every scheme (bsp_*.sh and gsp_*.sh
# differ in --kv-store alone), a weight decay (of train_cifar10_resnet.py), hardly a warm-up.
_PROTOCOL = ("--lr", "0.015", "--wd", "0.0001", "--warmup-epochs", "0.1", "--no-lr-scaling")
_ADDRESS = "127.0.0.1"
_SAID = """LeNet on MNIST, {} epochs, {} workers that are {} times slower than they could be, on one
machine with {} servers. Groups of GSP: workers {}; bound of SSP: {} steps. Medians of {} seeds, and
each seed."""


class GroupingRun(NamedTuple):
    """The result of one job; seconds since the first step of its first worker."""

    reached: float
    """When worker 0 had weights of the wanted accuracy first; infinite if never."""
    final: float
    """Accuracy at the end, on the validation images."""
    updates: int
    """Number of updates of the weights."""
    staleness: float
    """Mean over all pushes."""
    seconds: float
    """The end of the job."""


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Train and print the report."""
    options = _parse(argv)
    measured: dict[str, list[GroupingRun]] = {scheme: [] for scheme in SCHEMES}
    for seed in range(1, options.seeds + 1):
        for scheme, runs in measured.items():
            one = run(options, scheme, seed)
            runs.append(one)
            # Seeds take many minutes each: what is known is said at once.
            reached = f"{options.target:g} after {one.reached:.1f} s"
            print(f"seed {seed}, {SCHEMES[scheme]}: {reached}, {one.final:.4f}", file=sys.stderr)
    said = _SAID.format(
        options.epochs,
        len(options.slowdown),
        ", ".join(f"{factor:g}" for factor in options.slowdown),
        options.servers,
        " and ".join(", ".join(map(str, group)) for group in _groups(options)),
        options.staleness,
        options.seeds,
    )
    measure.print_report("Four schemes on unequal workers", said, [table(measured, options.target)])


def _speeds(options: argparse.Namespace) -> list[float]:
    return [1 / factor for factor in options.slowdown]


def _groups(options: argparse.Namespace) -> Groups:
    return autogroup.group(_speeds(options))


def run(options: argparse.Namespace, scheme: str, seed: int) -> GroupingRun:
    """Train once.

    Raises:
        RuntimeError: the job failed; with its output.
    """
    with TemporaryDirectory() as name:
        folder = Path(name)
        command = [*_launcher(options, scheme, folder), *_training(options, scheme, seed, folder)]
        # The workers share the processors: each uses one, the servers use the others.
        threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        run_all([(command, {**os.environ, **threads})])
        return _read(options, scheme, folder)


def _launcher(options: argparse.Namespace, scheme: str, folder: Path) -> list[str]:
    workers = len(options.slowdown)
    launcher = [sys.executable, "-m", "parallel.launch", "-n", str(workers)]
    launcher += ["-s", str(options.servers)]
    if scheme == "dist_gsync":
        addresses, groups = (_ADDRESS,) * workers, _groups(options)
        shares = format_shares(autogroup.shares(groups, _speeds(options)), addresses)
        files = {"groups": format_groups(groups, addresses), "data-sharding": shares}
        for name, text in files.items():
            (folder / name).write_text(text)
            launcher += [f"--{name}", str(folder / name)]
    return [*launcher, "--"]


def _training(options: argparse.Namespace, scheme: str, seed: int, folder: Path) -> list[str]:
    factors = ",".join(map(str, options.slowdown))
    more = {"dist_ssync": ["--staleness", str(options.staleness)]}
    more["dist_gsync"] = ["--data-allocator", "1"]
    return [
        *(sys.executable, "-m", "benchmarks.grouping_worker", str(folder), factors),
        *("--dataset", _DATASET, "--data-dir", str(options.data_dir), "--kv-store", scheme),
        *("--epochs", str(options.epochs), "--seed", str(seed), "--models-root", str(folder)),
        # Validation and saving happen at the end only, outside of the measured time.
        *("--eval-frequency", str(options.epochs), "--save-frequency", "0", "--keep", "0"),
        *more.get(scheme, []),
        *_PROTOCOL,
    ]


def _read(options: argparse.Namespace, scheme: str, folder: Path) -> GroupingRun:
    workers = range(len(options.slowdown))
    times = [list(map(float, (folder / f"steps-{k}").read_text().split())) for k in workers]
    begin, end = min(one[0] for one in times), max(one[-1] for one in times)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    final = [record for record in records if record.get("target") == "validation"][-1]["accuracy"]
    stale = [record["staleness"] for record in records if "staleness" in record]
    accuracy = evaluator(options.data_dir)
    saved = sorted(folder.glob("*.npz"), key=lambda path: float(path.stem))
    good = (float(path.stem) for path in saved if accuracy(path) >= options.target)
    reached = next(good, end if final >= options.target else math.inf) - begin
    # One update for each push, but the servers add up the pushes of BSP, and a group its own.
    pushers: Sequence[int] = [0] if scheme == "dist_sync" else workers
    if scheme == "dist_gsync":
        pushers = [min(group) for group in _groups(options)]
    updates = sum(len(times[pusher]) - 1 for pusher in pushers)
    return GroupingRun(reached, final, updates, stale[-1], end - begin)


def evaluator(data_dir: Path) -> Callable[[Path], float]:
    """Return a function for the accuracy of weights in a file, on all validation images."""
    given = {"dataset": _DATASET, "data_dir": str(data_dir), "batch_size": _EVALUATION_BATCH}
    config = images.resolve(given)
    dataset = open_images(config.data, config.run.seed)
    classifier = Classifier.create(
        ClassifierOptions(model=config.classifier.model),
        classes=dataset.training.num_classes,
        image_shape=dataset.training.shape,
        normalization=dataset.normalization,
        seed=0,
    )
    batches = list(dataset.validation_batches(config.data, LoneWorld()))

    def accuracy(path: Path) -> float:
        with np.load(path) as weights:
            for name, parameter in classifier.parameters.items():
                parameter.set_data(mx.nd.array(weights[name]))
        infer = classifier.inference()
        sums = np.sum([count(infer, batch) for batch in batches], axis=0)
        return float(sums[1] / sums[3])

    return accuracy


def table(measured: Mapping[str, Sequence[GroupingRun]], target: float) -> str:
    """Lay out the runs of each scheme: the median, and every seed."""
    header = ["", f"s to {target:g}", "× BSP", "final accuracy", "updates", "staleness", "s in all"]
    lines = []
    for scheme, runs in measured.items():
        first, *others = map(_spread, zip(*runs), (".1f", ".4f", ".0f", ".2f", ".1f"))
        own, bsp = (
            statistics.median(one.reached for one in measured[name])
            for name in (scheme, "dist_sync")
        )
        gain = math.nan if math.isinf(own) and math.isinf(bsp) else bsp / own
        lines.append([SCHEMES[scheme], first, f"{gain:.2f}", *others])
    return measure.markdown_table(header, lines)


def _spread(values: Sequence[float], form: str) -> str:
    every = ", ".join(format(value, form) for value in values)
    return f"{statistics.median(values):{form}} ({every})"


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.grouping",
        description="Train MNIST with BSP, ASP, SSP and GSP on workers of unequal speed.",
    )
    add = parser.add_argument
    add("--data-dir", type=Path, required=True, metavar="DIR", help="files of MNIST")
    slowdown_help = "how many times slower each worker is made (%(default)s)"
    add("--slowdown", type=_factors, default="1,1,4,4", help=slowdown_help)
    add("--servers", type=positive_integer, default=1, help="(%(default)s)")
    add("--epochs", type=positive_integer, default=3, help="(%(default)s)")
    add("--seeds", type=positive_integer, default=3, help="runs (%(default)s)")
    add("--staleness", type=positive_integer, default=3, help="bound of SSP (%(default)s)")
    add("--target", type=float, default=0.97, help="accuracy to be reached (%(default)s)")
    options = parser.parse_args(argv)
    options.data_dir = options.data_dir.resolve()
    return options


def _factors(text: str) -> tuple[float, ...]:
    try:
        factors = tuple(float(word) for word in text.split(","))
    except ValueError:
        factors = ()
    if not factors or not all(1 <= factor < math.inf for factor in factors):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers from 1, such as 1,1,4,4")
    return factors


if __name__ == "__main__":
    run_program(main)
