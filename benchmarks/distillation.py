"""What a teacher is worth: a small network alone and taught, over several seeds.

    python -m benchmarks.distillation --folder DIR

Draws a set of faces, trains a teacher on it, and then students for as short a time as is asked for,
each seed once alone and once with ``--teacher``. Accuracy is that on drawn people whom none of them
has seen. Only the teacher differs between the two runs of a seed: images, order, first weights and
options are the same.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from benchmarks import measure
from data.drawn import face_set
from runtime.command_line import Parser
from runtime.errors import run_program

_ROOT = Path(__file__).resolve().parents[1]
_IDENTITIES, _IMAGES, _SIZE, _SEED = 200, 20, (32, 32), 3
_RECIPE = (
    *("--network", "tiny", "--embedding-size", "128", "--margins", "1,0,0.2", "--scale", "32"),
    *("--lr-schedule", "cosine", "--val-targets", "unseen"),
    *("--verbose", "100000", "--save-interval", "0", "--keep", "0", "--resume", "never"),
)
_TEACHER = ("--lr", "0.1", "--batch-size", "64", "--warmup", "50", "--seed", "11")
_STUDENT = ("--lr", "0.1", "--batch-size", "64", "--warmup", "20")


class Student(NamedTuple):
    """The accuracy on unseen people of two networks of one seed."""

    seed: int
    alone: float
    taught: float


def train(folder: Path, models: Path, *options: str) -> float:
    """Train, and return the accuracy of the last verification."""
    words = ["--rec", str(folder / "faces"), "--models-root", str(models), *_RECIPE, *options]
    subprocess.run([sys.executable, "train.py", *words], cwd=_ROOT, check=True)
    lines = (models / "metrics.jsonl").read_text().splitlines()
    accuracies = [one["accuracy"] for one in map(json.loads, lines) if "accuracy" in one]
    return float(accuracies[-1])


def report(teacher: float, students: Sequence[Student], chosen: argparse.Namespace) -> str:
    """Describe the machine, the runs and what they reached, as Markdown."""
    lines = [
        (str(one.seed), f"{one.alone:.4f}", f"{one.taught:.4f}", f"{one.taught - one.alone:+.4f}")
        for one in students
    ]
    means = [statistics.mean(one[place] for one in students) for place in (1, 2)]
    alone, taught = means
    lines.append(("mean", f"{alone:.4f}", f"{taught:.4f}", f"{taught - alone:+.4f}"))
    better = sum(one.taught > one.alone for one in students)
    return "\n".join(
        [
            "# Distillation",
            "",
            measure.machine(),
            "",
            f"{_IDENTITIES} drawn people with {_IMAGES} images of {_SIZE[0]} x {_SIZE[1]} pixels; "
            f"`{shlex.join(_RECIPE)}`. The teacher: {chosen.teacher_updates} updates with "
            f"`{shlex.join(_TEACHER)}`, accuracy {teacher:.4f} on unseen people. The students: "
            f"{chosen.updates} updates with `{shlex.join(_STUDENT)}`, alone or with "
            f"`--teacher-weight {chosen.weight:g}`.",
            "",
            measure.markdown_table(("seed", "alone", "taught", "difference"), lines),
            "",
            f"Better with the teacher: {better} of {len(students)}.",
        ]
    )


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Train all of them and print the report."""
    parser = Parser(prog="python -m benchmarks.distillation")
    parser.add_argument("--folder", type=Path, required=True, help="for faces and runs; new")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--teacher-updates", type=int, default=620)
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--weight", type=float, default=8.0)
    chosen = parser.parse_args(argv)
    folder: Path = chosen.folder
    face_set.ensure(
        folder / "faces",
        identities=_IDENTITIES,
        images_per_identity=_IMAGES,
        image_size=_SIZE,
        seed=_SEED,
    )
    length = ("--max-update", str(chosen.teacher_updates))
    teacher = train(folder, folder / "teacher", *length, *_TEACHER)
    students = []
    for seed in chosen.seeds:
        same = ("--max-update", str(chosen.updates), *_STUDENT, "--seed", str(seed))
        taught = ("--teacher", f"{folder / 'teacher' / 'model'},0")
        students.append(
            Student(
                seed,
                train(folder, folder / f"alone-{seed}", *same),
                train(
                    folder, folder / f"taught-{seed}", *same, *taught,
                    *("--teacher-weight", str(chosen.weight)),
                ),
            )
        )  # fmt: skip
    print(report(teacher, students, chosen))


if __name__ == "__main__":
    run_program(main)
