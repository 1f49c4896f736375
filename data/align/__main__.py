"""Cut the faces out of a folder of images, as networks for faces expect them.

    python -m data.align FACES ALIGNED --points points.txt

Every image of the folder, or of the folders in it, becomes one of 112 x 112 under the same path in
a new folder, which gets its name when it is complete. Images that cannot be read, or have no points
of a face, are named on standard error and left out; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from data.align.points import PointsFile
from data.align.similarity import SIDE
from data.decoding import IMAGE_ENDINGS, encode, read_image
from data.identities import find_images
from data.worker_threads import add_workers, map_in_order, say, track
from runtime.command_line import Parser
from runtime.errors import DataError, print_line, run_stoppable
from runtime.files import create, new_folder


def _written_name(name: str, lossless: bool) -> str:
    """Return the path of a face by that of its image, both within their folders."""
    stem, ending = os.path.splitext(name)
    known = ending.lower() in IMAGE_ENDINGS
    return (stem if known else name) + (".png" if lossless else ".jpg")


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m data.align",
        description="Cut aligned faces of 112 x 112 out of images. Exit status: 1 if some images "
        "are refused, which are named and left out.",
    )
    add = parser.add_argument
    add("folder", type=Path, help="the images, or folders of images; nothing in it is changed")
    add("out", type=Path, help="the folder to make; an existing one has to be empty")
    points_help = (
        "the five points of each image: its path in the folder, then x and y of left eye, right "
        "eye, nose, left and right corner of the mouth"
    )
    add("--points", type=Path, metavar="FILE", required=True, help=points_help)
    add("--png", action="store_true", help="write PNGs instead of JPEGs of quality 95")
    add_workers(parser)
    return parser.parse_args(argv)


def _cut_all(
    points: PointsFile, names: Sequence[str], out: Path, options: argparse.Namespace
) -> int:
    """Write the faces of all images; return how many images were refused, and are named."""
    written = {name: _written_name(name, options.png) for name in names}
    ((first, uses),) = Counter(written.values()).most_common(1)
    if uses > 1:
        raise DataError(
            f"{options.folder} has two images that would both become {first}; rename one of them"
        )

    def cut(name: str) -> Optional[str]:
        """Write the face in an image; return why there is none, None if there is."""
        path = f"{options.folder}{os.sep}{name}"
        try:
            aligned = points.align(path, read_image(path))
        except DataError as error:
            return str(error)
        target = out / written[name]
        target.parent.mkdir(parents=True, exist_ok=True)
        with create(target) as file:
            file.write(encode(aligned, options.png))
        return None

    refused = 0
    with map_in_order(cut, names, options.workers) as results:
        for refusal in track(results, len(names), "aligning faces"):
            if refusal is not None:
                refused += 1
                say(refusal)
    if refused == len(names):
        raise DataError(
            f"none of the {refused:,} images has a face that can be aligned; the lines above say "
            "why"
        )
    return refused


def main() -> int:
    """Align what the command line asks for; return the exit status."""
    options = _parse(sys.argv[1:])
    out: Path = options.out
    with new_folder(out) as hidden:
        names, remarks = find_images(options.folder)
        points = PointsFile(options.points, options.folder)
        refused = _cut_all(points, names, hidden, options)
    for line in remarks:
        say(line)
    without = f", without {refused:,} that were refused" if refused else ""
    print_line(f"{out}: {len(names) - refused:,} images of {SIDE} x {SIDE}{without}")
    return 1 if refused else 0


if __name__ == "__main__":
    run_stoppable(main)
