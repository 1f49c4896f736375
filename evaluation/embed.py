"""Write the embeddings of images: ``NAME.npy`` with a row per image, ``NAME.tsv`` with their names.

    python -m evaluation.embed --model models/run/model,0 FACES --out faces

Several ranks share the images, each a batch of every block, and rank 0 writes the rows of all.
Files get their names when all are complete. A million embeddings of 512 numbers are 2 GB: the file
has its length from the start, so that a full disk shows at once.
"""

from __future__ import annotations

import argparse
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Optional

import numpy as np

from data.worker_threads import add_workers, map_in_order, say, track
from evaluation.features import FaceNetwork, Features, Images, normalized
from evaluation.files import map_floats, writing
from evaluation.network import check_same, device_of, open_network
from evaluation.options import add_network
from runtime.command_line import Parser
from runtime.environment import prepare_lanes
from runtime.errors import DataError, print_line, run_stoppable, undisturbed
from runtime.files import StagedFiles

# NumPy's stubs give this module no types.
_NPY: Any = np.lib.format
# The header of format 1.0 has this length for a table of any size.
_HEADER_BYTES = 128


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m evaluation.embed",
        description="Write the embeddings of images. Under horovodrun or mpirun the ranks share "
        "the images, each on the GPU of its local rank if there is one; all of them have to see "
        "the same images under the same paths.",
    )
    add = parser.add_argument
    input_help = (
        "an image; a folder, of which all images are taken, at any depth, labeled by their "
        "folders; a record set (a .rec file, or a folder with train.rec); or a verification set "
        "(.bin)"
    )
    add("inputs", nargs="+", metavar="INPUT", help=input_help)
    out_help = "write NAME.npy, float32 [n, D], and NAME.tsv: row, name of the image, label"
    add("--out", required=True, metavar="NAME", help=out_help)
    add_network(parser)
    raw_help = "do not normalize the rows: the network's outputs, or sums of two with mirror images"
    add("--raw", action="store_true", help=raw_help)
    safetensors_help = "write NAME.safetensors as well, with the tensor embeddings"
    add("--safetensors", action="store_true", help=safetensors_help)
    skip_help = "leave images out that are broken or of another size, and name them"
    add("--skip-broken", action="store_true", help=skip_help)
    resize_help = (
        "bring images of another size to the network's, of those of another shape the largest "
        "part with the same center; without it they are refused"
    )
    add("--resize", action="store_true", help=resize_help)
    add_workers(parser)
    options = parser.parse_args(argv)
    options.out = options.out.removesuffix(".npy")
    return options


def _blocks(
    options: argparse.Namespace, faces: Any, network: FaceNetwork, world: Any
) -> Iterator[Features]:
    """Yield the rows of consecutive images, float32 [b, D + 1], on every rank.

    The last number is 1 if there is such a row, else 0. Each rank embeds a batch of a block; the
    last block may end with rows of no image.

    Raises:
        DataError: an image cannot be read and none may be left out.
    """

    def rows_of(images: Images) -> Features:
        features, _ = network.sums(images)
        return features if options.raw else normalized(features)

    def read(number: int) -> Optional[Images]:
        try:
            image: Images = faces.read(number)
        except DataError as error:
            if not options.skip_broken:
                raise DataError(
                    f"{error}; repair or remove it, or leave such images out with --skip-broken"
                ) from None
            say(f"left out: {error}")
            return None
        return image

    # Only the network knows how wide its rows are.
    width = rows_of(np.zeros((1, 3, *network.image_size), np.uint8)).shape[1]
    count, batch_size = len(faces), network.batch_size
    # As many on every rank; the last of a rank may be empty.
    starts = [first + world.rank * batch_size for first in range(0, count, batch_size * world.size)]
    parts = [range(start, min(start + batch_size, count)) for start in starts]
    with map_in_order(read, chain.from_iterable(parts), options.workers) as results:
        total = sum(map(len, parts))
        shown = track(results, total, "embedding") if world.rank == 0 else results
        for numbers in parts:
            block = np.zeros((batch_size, width + 1), np.float32)
            error: Optional[DataError] = None
            try:
                read_ones = enumerate(islice(shown, len(numbers)))
                images = {place: image for place, image in read_ones if image is not None}
                if images:
                    block[[*images], -1] = 1
                    block[[*images], :-1] = rows_of(np.stack([*images.values()]))
            except DataError as found:
                # Told to the others, which would wait for this rank.
                error, block[0, -1] = found, np.nan
            rows = np.concatenate(world.gather_objects(block, "embed.rows"))
            if error is not None:
                raise error
            if np.isnan(rows[:, -1]).any():
                raise DataError("another rank cannot embed an image, and says which")
            yield rows


def _write_files(
    options: argparse.Namespace, faces: Any, blocks: Iterator[Features]
) -> tuple[int, int]:
    """Write the files on rank 0, and return the number of rows and of columns.

    Raises:
        OSError: a file cannot be written.
        DataError: no image can be embedded.
    """
    path, index, tensors = (
        Path(f"{options.out}.{ending}") for ending in ("npy", "tsv", "safetensors")
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    files = StagedFiles()
    try:
        file, first = files.open(path), next(blocks)
        width = first.shape[1] - 1
        # Reserves room for all rows, so that a full disk shows at once.
        os.posix_fallocate(file.fileno(), 0, _HEADER_BYTES + 4 * len(faces) * width)
        file.seek(_HEADER_BYTES)
        has_row = []
        for block in chain([first], blocks):
            has_row.append(block[:, -1] == 1)
            file.write(block[has_row[-1], :-1].astype("<f4").tobytes())
        kept = np.flatnonzero(np.concatenate(has_row)).tolist()
        if not kept:
            raise DataError(
                f"none of the {len(faces):,} images can be embedded, the lines above say why"
            )
        file.truncate()
        file.seek(0)
        header = {"descr": "<f4", "fortran_order": False, "shape": (len(kept), width)}
        _NPY.write_array_header_1_0(file, header)
        assert file.tell() == _HEADER_BYTES, header
        write_index(files.open(index), ((faces.name(n), faces.label(n)) for n in kept))
        if options.safetensors:
            import safetensors.numpy

            file.flush()
            rows = map_floats(Path(file.name))
            assert rows is not None, file.name
            files.open(tensors).write(safetensors.numpy.save({"embeddings": rows}))
        with undisturbed():
            # An index or tensors of other rows would contradict the new ones.
            files.publish(remove_first=[index, tensors])
    finally:
        files.discard()
    return len(kept), width


def write_index(file: BinaryIO, images: Iterable[tuple[str, str]]) -> None:
    """Write a line for each name and label."""
    for number, (name, label) in enumerate(images):
        file.write(f"{number}\t{name}\t{label}\n".encode(errors="surrogateescape"))


def embed(options: argparse.Namespace, world: Any = None) -> None:
    """Write the files and print a line about them.

    Args:
        options: of the command line.
        world: the ranks that share the images; without it, those that a launcher has started.

    Raises:
        DataError: an input is missing or broken, or a file cannot be written.
    """
    # Here, because rooms meet in programs only.
    from data.named_images import NamedImages, open_sources
    from parallel.world import join_ranks

    sources = open_sources(options.inputs)
    world = world or join_ranks()
    network = open_network(options, device_of(options, world))
    faces = NamedImages(sources, network.image_size, scales=options.resize)
    if world.size > 1:
        check_same(world, faces.checksum(), "embed.inputs", "images")
    for line in faces.remarks if world.rank == 0 else ():
        say(line)
    network = replace(network, batch_size=min(options.batch_size, -(-len(faces) // world.size)))

    blocks = _blocks(options, faces, network, world)
    if world.rank != 0:
        deque(blocks, maxlen=0)
        return
    with writing(Path(f"{options.out}.npy"), "--out"):
        rows, width = _write_files(options, faces, blocks)
    left_out = len(faces) - rows
    without = f", without {left_out:,} that cannot be embedded" if left_out else ""
    print_line(f"{options.out}.npy, {options.out}.tsv: {rows:,} embeddings of {width}{without}")


def main(argv: Optional[Sequence[str]] = None, world: Any = None) -> None:
    """Embed what the command line asks for; ``world`` is that of a test."""
    options = _parse(argv)
    prepare_lanes()
    embed(options, world)


if __name__ == "__main__":
    run_stoppable(main)
