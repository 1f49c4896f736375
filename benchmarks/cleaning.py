"""How many wrong labels ``evaluation.clean`` finds among those that were planted in a set.

    python -m benchmarks.cleaning --faces FOLDER --model NETWORK,0 [--seeds 3] [--json FILE]

The images of a folder with a folder per person are embedded once. Then 5 % of those of the people
with so many images get the label of somebody else, ``evaluation.clean`` looks at the whole set, and
what it leaves out is compared with what was planted. Wrong labels that the set has by itself count
as mistakes of the command. The report goes to the standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Optional

if not __package__:
    # Started by its path: Python has put this folder on the path, not the project's.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure
from data.decoding import decode_file
from data.records.writer import RecordWriter
from evaluation.clean import __main__ as command
from evaluation.embed import __main__ as embed
from evaluation.embed.index import write_index
from runtime.command_line import Parser, positive_integer
from runtime.errors import run_program

_SHARE = 0.05

Labels = NDArray[np.int64]


class Planting(NamedTuple):
    """Which images get a wrong label: those of people with ``least`` images or more.

    Attributes:
        least: images of a person.
        into: images of the person whose label they get, or more.
    """

    least: int
    into: int

    def __str__(self) -> str:
        """Its case in the report."""
        of = f"{self.least} images or more" if self.least > 1 else "any number"
        return f"{of}, {f'into classes of {self.into} or more' if self.into > 1 else 'any class'}"


PLANTINGS = (Planting(2, 1), Planting(3, 1), Planting(2, 2), Planting(3, 3), Planting(1, 1))


class Faces(NamedTuple):
    """A set of faces: encoded images, the person of each, and embeddings float32 [n, D]."""

    images: Sequence[bytes]
    labels: Labels
    rows: NDArray[np.float32]


class Found(NamedTuple):
    """What the command made of a planting.

    Attributes:
        planted: images with a wrong label.
        recall: the share of them that it leaves out.
        precision: the share of them among all that it leaves out.
        right: of those that it would move to another class, and are planted, the share that it
            would move to the class of their person.
    """

    planted: int
    recall: float
    precision: float
    right: float


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Embed, plant, clean, and print the report."""
    options = _parse(argv)
    with TemporaryDirectory() as folder:
        faces = embedded(options.faces, options.model, Path(folder))
        found: dict[Planting, list[Found]] = {}
        for planting in PLANTINGS:
            for seed in range(options.seeds):
                print(f"planting {planting}, seed {seed}", file=sys.stderr)
                labels = plant(faces.labels, planting, seed)
                place = Path(folder) / f"{planting.least}-{planting.into}-{seed}"
                found.setdefault(planting, []).append(find_planted(faces, labels, place))
    print(report(faces, options.seeds, found))
    if options.json:
        measure.write_json(options.json, _rows(found))


def embedded(folder: Path, model: str, place: Path) -> Faces:
    """Embed a folder with a folder per person; what is in between is kept in ``place``."""
    people = sorted(path for path in folder.iterdir() if path.is_dir())
    images = {person: sorted(person.iterdir()) for person in people}
    paths = [path for person in people for path in images[person]]
    with contextlib.redirect_stdout(sys.stderr):
        embed.main(["--model", model, "--out", str(place / "all"), *map(str, paths)])
    labels = np.repeat(np.arange(len(people)), [len(images[person]) for person in people])
    return Faces([path.read_bytes() for path in paths], labels, np.load(place / "all.npy"))


def plant(labels: Labels, planting: Planting, seed: int) -> Labels:
    """Labels of which 5 % of those to plant among are somebody else's."""
    generator, counts = np.random.default_rng(seed), np.bincount(labels)
    candidates = np.flatnonzero(counts[labels] >= planting.least)
    others = np.flatnonzero(counts >= planting.into)
    planted = labels.copy()
    for number in generator.choice(candidates, round(_SHARE * len(candidates)), replace=False):
        while planted[number] == labels[number]:
            planted[number] = generator.choice(others)
    return planted


def find_planted(faces: Faces, planted: Labels, place: Path) -> Found:
    """Let the command find the wrong ones of the labels; its files are written into ``place``."""
    place.mkdir()
    order = np.argsort(planted, kind="stable")
    # A person of whom no label is left has no class.
    classes, dense = np.unique(planted, return_inverse=True)
    height, width, _ = decode_file(faces.images[0]).shape
    with RecordWriter(place / "set", image_size=(height, width)) as writer:
        for number in order.tolist():
            writer.write(faces.images[number], int(dense[number]))
    np.save(place / "planted.npy", faces.rows[order])
    with open(place / "planted.tsv", "wb") as file:
        names = (f"{place}/set/train.rec:{n}" for n in range(1, len(order) + 1))
        write_index(file, zip(names, map(str, dense[order].tolist())))
    words = ["--features", str(place / "planted.npy"), "--report", str(place / "report")]
    with contextlib.redirect_stdout(sys.stderr):
        command.main([str(place / "set"), *words, "--sheets", "1"])
    is_out = np.array([line[2] == "" for line in _table(place / "report/images.tsv")])
    is_wrong = (planted != faces.labels)[order]
    rights = []
    for key, _, _, other, _ in _table(place / "report/moved.tsv"):
        number = int(key) - 1
        if is_wrong[number]:
            rights.append(classes[int(other)] == faces.labels[order[number]])
    return Found(
        int(is_wrong.sum()),
        float(is_out[is_wrong].mean()),
        float(is_wrong[is_out].mean()),
        float(np.mean(rights)),
    )


def _table(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]


def report(faces: Faces, seeds: int, found: Mapping[Planting, Sequence[Found]]) -> str:
    """Describe the machine, the set and what was found, as Markdown."""
    counts = np.bincount(faces.labels)
    lines = [
        [str(planting), f"{results[0].planted}", *(_span(one) for one in list(zip(*results))[1:])]
        for planting, results in found.items()
    ]
    header = ("planted among people with", "planted", "recall", "precision", "moved right")
    return f"""# Planted wrong labels

{measure.machine()}

{len(faces.labels):,} images of {len(counts):,} people, of whom {np.sum(counts == 1):,} have one
image; {_SHARE:.0%} of the images of some of them got the label of somebody else. {seeds} draws of
each case, from the lowest to the highest; "moved right" is the share of planted images that the
command would move to another class, and would move to that of their person.

{measure.markdown_table(header, lines)}"""


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


def _rows(found: Mapping[Planting, Sequence[Found]]) -> list[measure.Row]:
    return [
        measure.Row(
            str(planting), name, float(np.median([getattr(one, name) for one in results])), ""
        )
        for planting, results in found.items()
        for name in ("recall", "precision", "right")
    ]


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m benchmarks.cleaning",
        description="Plant wrong labels in a set of faces, and count those that are found.",
    )
    parser.add_argument(
        "--faces", type=Path, required=True, metavar="FOLDER", help="with a folder per person"
    )
    parser.add_argument(
        "--model", required=True, metavar="PREFIX,EPOCH", help="the network that embeds them"
    )
    parser.add_argument(
        "--seeds", type=positive_integer, default=3, help="draws of each case (%(default)s)"
    )
    parser.add_argument("--json", type=measure.file_to_write, metavar="FILE", help="write the rows")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_program(main)
