"""Write the embeddings of images: ``NAME.npy`` with a row per image, ``NAME.tsv`` with their names.

    python -m evaluation.embed --model models/run/model,0 FACES --out faces

Several ranks share the images, each a part that is consecutive, and write into one file. Files get
their names when all are complete.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from evaluation import originals
from evaluation.embed.files import RowsFile, reserve, write_index, write_safetensors
from evaluation.features import Images, batches, normalized, sums_of_views
from evaluation.folds import Features
from evaluation.network import FaceNetwork, add_network, device_of, open_network
from runtime.command_line import Parser
from runtime.environment import prepare_lanes
from runtime.errors import DataError
from runtime.files import StagedFiles
from runtime.process.terminal import print_line
from runtime.stopping import run_stoppable, undisturbed

_Read = Union[Images, DataError]


class Embedder(NamedTuple):
    """How images become rows.

    Attributes:
        network: from images to features.
        batch_size: images per batch.
        flip: whether the features of mirror images are added.
        normalizes: whether rows get the length 1.
    """

    network: FaceNetwork
    batch_size: int
    flip: bool = True
    normalizes: bool = True

    def rows(self, images: Images) -> Features:
        """Return the rows [b, D] of at most ``batch_size`` images.

        Raises:
            DataError: they are not finite.
        """
        features, _ = sums_of_views(self.network.extract, images, self.batch_size, flip=self.flip)
        return normalized(features) if self.normalizes else features


def embed_part(
    embedder: Embedder, results: Iterable[_Read], first: int, file: RowsFile, skip_broken: bool
) -> NDArray[np.bool_]:
    """Write the rows of a part of the images, without gaps; return which images have one.

    Args:
        embedder: makes the rows.
        results: each image in order, or the reason why there is none.
        first: row of the first image.
        file: is written to.
        skip_broken: whether images that cannot be read are named and left out.

    Raises:
        DataError: an image cannot be read and none may be left out.
        OSError: the disk is full.
    """
    from data.worker_threads import say

    has_row: list[bool] = []

    def readable() -> Iterator[Images]:
        for result in results:
            if isinstance(result, DataError):
                if not skip_broken:
                    raise DataError(
                        f"{result}; repair or remove it, or leave such images out with "
                        "--skip-broken"
                    )
                say(f"left out: {result}")
            else:
                yield result
            has_row.append(not isinstance(result, DataError))

    written = 0
    for images in batches(readable(), embedder.batch_size):
        file.write(first + written, embedder.rows(images))
        written += len(images)
    return np.array(has_row, np.bool_)


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    from data.worker_threads import add_workers

    parser = Parser(
        prog="python -m evaluation.embed",
        description="Write the embeddings of images. Under horovodrun or mpirun the ranks share "
        "the images, each on the GPU of its local rank if there is one; all of them have to see "
        "the same files under the same paths, those that are written too.",
        foreign=originals.EMBED,
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


def _write_files(
    options: argparse.Namespace, faces: Any, embedder: Embedder, world: Any
) -> Optional[tuple[int, int]]:
    """Embed this rank's part; return rows and width on rank 0, when all ranks have done theirs.

    Raises:
        OSError: a file cannot be written.
        DataError: an image or a rank is refused.
    """
    # Only the network knows how wide its rows are.
    width = embedder.rows(np.zeros((1, 3, *embedder.network.image_size), np.uint8)).shape[1]
    files, path = StagedFiles(), Path(f"{options.out}.npy")
    with ExitStack() as stack:
        stack.callback(files.discard)
        if world.rank == 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = files.open(path)
            path = Path(file.name)
            reserve(file, len(faces), width)
        path = Path(world.broadcast_object(str(path), "embed.path"))
        try:
            with RowsFile(path, width) as rows_file:
                has_row = _write_part(options, faces, embedder, world, rows_file)
        except BaseException:
            # Rank 0 may be waiting for this one until the launcher kills it.
            with undisturbed(), suppress(OSError):
                path.unlink(missing_ok=True)
            raise
        if world.rank != 0:
            return None
        if not has_row.any():
            raise DataError(
                f"none of the {len(has_row):,} images can be embedded, the lines above say why"
            )
        bounds = [part_of(len(faces), rank, world.size) for rank in range(world.size)]
        # Opened again: only then do some network disks show the rows of other hosts.
        with RowsFile(path, width) as rows_file:
            rows = rows_file.close_gaps(
                [(start, int(has_row[start:stop].sum())) for start, stop in bounds]
            )
        index, tensors = Path(f"{options.out}.tsv"), Path(f"{options.out}.safetensors")
        kept = np.flatnonzero(has_row).tolist()
        write_index(files.open(index), ((faces.name(n), faces.label(n)) for n in kept))
        if options.safetensors:
            flags = {"flip": embedder.flip, "normalized": embedder.normalizes}
            notes = {name: str(flag).lower() for name, flag in flags.items()}
            notes["model"] = embedder.network.name
            write_safetensors(path, files.open(tensors), (rows, width), notes)
        with undisturbed():
            # An index or tensors of other rows would contradict the new ones.
            files.publish(remove_first=[index, tensors])
    return rows, width


def _write_part(
    options: argparse.Namespace, faces: Any, embedder: Embedder, world: Any, file: RowsFile
) -> NDArray[np.bool_]:
    """Return for each image of all ranks whether it has a row."""
    from data.worker_threads import map_in_order, track
    from parallel.world import allgather_numpy

    def read(number: int) -> _Read:
        try:
            image: Images = faces.read(number)
        except DataError as error:
            return error
        return image

    first, stop = part_of(len(faces), world.rank, world.size)
    with map_in_order(read, range(first, stop), options.workers) as results:
        shown = track(results, stop - first, "embedding") if world.rank == 0 else results
        own = embed_part(embedder, shown, first, file, options.skip_broken)
    file.flush()
    has_row = np.zeros(len(faces), np.float32)
    has_row[first:stop] = own
    every = allgather_numpy(world, has_row, "embed.rows")
    has_any: NDArray[np.bool_] = every.reshape(world.size, -1).any(axis=0)
    return has_any


def part_of(count: int, rank: int, size: int) -> tuple[int, int]:
    """Return the first image of a rank, and the first behind its part."""
    return count * rank // size, count * (rank + 1) // size


def _check_inputs(faces: Any, world: Any) -> None:
    """Refuse ranks that see other images."""
    if world.size == 1:
        return
    checksum = faces.checksum()
    if world.broadcast_object(checksum, "embed.inputs") != checksum:
        raise DataError(
            f"rank {world.rank} sees other images than rank 0; all ranks have to see the same "
            "files under the same paths"
        )


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
    from data.worker_threads import say
    from parallel.world import join_ranks

    sources = open_sources(options.inputs)
    world = world or join_ranks()
    network = open_network(options, device_of(options, world))
    faces = NamedImages(sources, network.image_size, scales=options.resize)
    _check_inputs(faces, world)
    for line in faces.remarks if world.rank == 0 else ():
        say(line)
    batch_size = min(options.batch_size, -(-len(faces) // world.size))
    embedder = Embedder(network, batch_size, not options.no_flip, not options.raw)
    try:
        written = _write_files(options, faces, embedder, world)
    except OSError as error:
        raise DataError(
            f"{options.out}.npy cannot be written: {error.strerror}; make room, or choose another "
            "place with --out"
        ) from None
    if written:
        rows, width = written
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
