"""Runs the quick start as README has it, and keeps what the pictures and documents say of it.

    python -m benchmarks.quick_start --json docs/results/quick-start.json [--run FOLDER]

The run is ``bash run.sh`` with two ranks, verified more often, which changes the result by no more
than rounding. Of its folder loss and accuracies are kept, and what everything takes on the disk.
Ten people who are in neither the training nor the verification set are embedded by the network as
it was before the first update, which the seed decides, and after the last; scikit-learn lays both
out in two dimensions (t-SNE, van der Maaten 2008). With ``--run`` a run that is there is read, and
none is started.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure
from data.decoding import decode_rgb
from data.drawn.face_set import draw_identity
from evaluation.embed.__main__ import Embedder
from evaluation.network import FaceNetwork
from evaluation.report import run_files
from runtime.command_line import Parser
from runtime.errors import run_program
from training.config import faces

COMMAND = "bash run.sh"
FOLDER = Path("models/quick-start")
# Behind those to train on and those of the pairs.
FIRST_PERSON, PEOPLE, IMAGES = 1000, 10, 20
_TAKEN = (".venv", "datasets/synthetic")
_SEED = 0

Embeddings = NDArray[np.float32]
Result = dict[str, Any]


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run, unless there is a run; write the result."""
    options = _parse(argv)
    timed = {} if options.run else {"seconds": round(run(FOLDER))}
    processor, instructions, *_ = measure.machine().splitlines()
    result = {
        **collect(options.run or FOLDER),
        **timed,
        "machine": processor.removeprefix("- processor: "),
        "instructions": instructions.removeprefix("- "),
        "commit": measure.commit(),
        "command": COMMAND,
    }
    lines = ",\n".join(f'"{name}": {json.dumps(value)}' for name, value in result.items())
    options.json.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"{result['said']}\n{options.json}")


def run(folder: Path) -> float:
    """Train; returns the seconds that it took."""
    began = time.monotonic()
    chosen = f"--verbose 20 --frequent 5 --resume never --models-root {folder}"
    words = f"{COMMAND} {chosen}".split()
    done = subprocess.run(words, cwd=measure.ROOT, stdout=sys.__stderr__, check=False)
    if done.returncode:
        # It has said why.
        sys.exit(done.returncode)
    return time.monotonic() - began


def collect(folder: Path) -> Result:
    """What is kept of a run: its curves, its last line, and the embeddings."""
    files = run_files.read(folder)
    (target,) = files.targets.values()
    log = (folder / "logs" / "rank-0000.log").read_text(encoding="utf-8")
    images, people = draw_people()
    before, after = embeddings(folder, images)
    return {
        "said": re.findall(r"verification unseen: accuracy untrained .*", log)[-1],
        "loss": [[one["update"], round(one["loss"], 4)] for one in files.training],
        "verification": [[one["update"], one["accuracy"], one["accuracy_std"]] for one in target],
        "people": people.tolist(),
        "neighbors_before": neighbors(before, people),
        "neighbors_after": neighbors(after, people),
        "before": in_two_dimensions(before),
        "after": in_two_dimensions(after),
        "gigabytes": round(sum(map(_gigabytes, (*map(measure.ROOT.joinpath, _TAKEN), folder))), 3),
    }


def _gigabytes(folder: Path) -> float:
    files = (path for path in folder.resolve().rglob("*") if not path.is_symlink())
    return sum(path.stat().st_size for path in files if path.is_file()) / 1e9


def draw_people() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images [n, 3, height, width] of people of whom there is none in the synthetic set."""
    people = np.repeat(np.arange(PEOPLE), IMAGES)
    encoded = [
        image
        for person in range(PEOPLE)
        for image in draw_identity(FIRST_PERSON + person, images=IMAGES)
    ]
    images = np.stack([decode_rgb(one) for one in encoded]).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(images), people


def embeddings(folder: Path, images: NDArray[np.uint8]) -> Iterator[Embeddings]:
    """Yield rows [n, D] of length 1 by the network before its first update and after its last."""
    # Imported here, because it takes a second for which --help need not wait.
    from backbones.model import Backbone
    from evaluation.features import FACE_SIZE

    config = faces.parse(["--config", str(folder / run_files.CONFIG)])
    for network in (
        Backbone.create(config.backbone, image_size=FACE_SIZE, seed=config.run.seed, ctx=None),
        Backbone.load(folder / "model", 0, image_size=FACE_SIZE),
    ):
        embedder = Embedder(FaceNetwork(network.inference(), FACE_SIZE, ""), batch_size=50)
        parts = [embedder.rows(images[start : start + 50]) for start in range(0, len(images), 50)]
        yield np.concatenate(parts).astype(np.float32)


def neighbors(embeddings: Embeddings, people: NDArray[np.int64]) -> float:
    """The share of images whose most similar other image shows the same person."""
    similarity = embeddings @ embeddings.T
    np.fill_diagonal(similarity, -np.inf)
    return float(np.mean(people[similarity.argmax(axis=1)] == people))


def in_two_dimensions(embeddings: Embeddings) -> list[list[float]]:
    """Lay embeddings out such that similar ones are near each other."""
    from sklearn.manifold import TSNE

    layout = TSNE(perplexity=15, init="pca", learning_rate="auto", random_state=_SEED)
    points = layout.fit_transform(embeddings)
    return [[round(float(value), 2) for value in point] for point in points]


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.quick_start", description="Run the quick start, keep its curves."
    )
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="read this run, start none")
    parser.add_argument("--json", type=measure.file_to_write, required=True, metavar="FILE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_program(main)
