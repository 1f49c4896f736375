"""The most similar images of a gallery for each probe, and how often they show the same person.

1:N identification on embeddings that ``evaluation.embed`` has written. Cosines are products of
blocks of probes with blocks of the gallery, of which the best are kept, so that memory depends on
the size of a block, not of the gallery: a million rows stay on the disk.

Shape suffixes: P probes of a block, G gallery rows of a block, K matches, D numbers of a row.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from evaluation.features import finite_rows, normalized
from evaluation.files import check_output, read_embeddings, writing
from evaluation.options import cosine
from runtime.command_line import Parser, positive_integer
from runtime.errors import DataError, print_line, run_stoppable
from runtime.files import StagedFiles

# Blocks of which the cosines have 64 MiB, and the rows, at 512 numbers, 32 MiB.
_PROBES, _GALLERY = 1024, 16384
_RANKS = (1, 5)


def _best_of(
    cosines_PG: NDArray[np.float32],
    first: int,
    best_PK: NDArray[np.float32],
    rows_PK: NDArray[np.int64],
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the best matches of those until now and of a block that begins at row ``first``.

    Of equal cosines the row that comes first is kept. A cosine of minus infinity is none.
    """
    count, probes = best_PK.shape[1], np.arange(len(best_PK))
    every = np.concatenate([best_PK, cosines_PG], axis=1)
    best, rows = np.empty_like(best_PK), np.empty_like(rows_PK)
    for k in range(count):
        places = every.argmax(axis=1)
        best[:, k] = every[probes, places]
        known = rows_PK[probes, np.minimum(places, count - 1)]
        rows[:, k] = np.where(places < count, known, first + places - count)
        every[probes, places] = -np.inf
    rows[np.isneginf(best)] = -1
    return best, rows


def search(
    gallery: NDArray[Any],
    probes: NDArray[Any],
    top: int,
    excluded: Optional[NDArray[np.int64]] = None,
    blocks: tuple[int, int] = (_PROBES, _GALLERY),
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the ``top`` rows of the gallery with the largest cosines, for each probe.

    Both are [m, K], the most similar first: the cosines, and the rows; -1 where there are no more.

    Args:
        gallery: [n, D], of any lengths; it may be mapped into memory, and is read in blocks.
        probes: [m, D], likewise.
        top: matches of a probe.
        excluded: for each probe the row of the gallery that is left out, -1 for none [m].
        blocks: probes and gallery rows of a block.

    Raises:
        DataError: a row is not finite, or too large for a length.
    """
    best = np.full((len(probes), top), -np.inf, np.float32)
    rows = np.full(best.shape, -1, np.int64)
    for first in range(0, len(probes), blocks[0]):
        probes_PD = normalized(finite_rows(probes, first, blocks[0], "the probes"))
        block = slice(first, first + len(probes_PD))
        for start in range(0, len(gallery), blocks[1]):
            gallery_GD = normalized(finite_rows(gallery, start, blocks[1], "the gallery"))
            cosines_PG = probes_PD @ gallery_GD.T
            if excluded is not None:
                places = excluded[block] - start
                hidden = np.flatnonzero((places >= 0) & (places < len(gallery_GD)))
                cosines_PG[hidden, places[hidden]] = -np.inf
            best[block], rows[block] = _best_of(cosines_PG, start, best[block], rows[block])
    return best, rows


def identification(
    gallery: Sequence[str],
    probes: Sequence[str],
    excluded: NDArray[np.int64],
    rows: NDArray[np.int64],
) -> tuple[int, list[float]]:
    """Return how many probes count, and the shares of them that are found at the first ranks.

    A probe counts if the gallery has an (other) image of its identity.

    Args:
        gallery: the labels of its images, empty where not known.
        probes: likewise.
        excluded: as for ``search``.
        rows: the matches of each probe, -1 for none; at least five, if the gallery has them.
    """
    images, found = Counter(gallery), []
    for label, own, matches in zip(probes, excluded.tolist(), rows.tolist()):
        if label and images[label] > (own >= 0 and gallery[own] == label):
            found.append([row >= 0 and gallery[row] == label for row in matches])
    rates = [sum(any(one[:rank]) for one in found) / max(1, len(found)) for rank in _RANKS]
    return len(found), rates


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m evaluation.search",
        description="Find the most similar images of a gallery for each probe, by embeddings that "
        "python -m evaluation.embed has written.",
    )
    add = parser.add_argument
    gallery_help = "the embeddings that are searched; names and labels are in G.tsv"
    add("--gallery", required=True, type=Path, metavar="G.npy", help=gallery_help)
    probes_help = "the embeddings that are looked for; names and labels are in P.tsv"
    add("--probes", required=True, type=Path, metavar="P.npy", help=probes_help)
    add("--top", type=positive_integer, default=5, metavar="K", help="matches of a probe (5)")
    threshold_help = "only matches of at least this cosine"
    add("--threshold", type=cosine, default=-math.inf, metavar="X", help=threshold_help)
    self_help = "leave out the gallery image of the same name as the probe"
    add("--leave-self-out", action="store_true", help=self_help)
    out_help = "the table to write: probe, rank, gallery image, cosine (P-matches.tsv)"
    add("--out", type=Path, metavar="FILE.tsv", help=out_help)
    return parser.parse_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Write the table, and print the identification rates if both indexes have labels."""
    options = _parse(argv)
    gallery, probes = read_embeddings(options.gallery), read_embeddings(options.probes)
    widths = gallery.rows.shape[1], probes.rows.shape[1]
    if widths[0] != widths[1]:
        raise DataError(
            f"{gallery.path} has rows of {widths[0]} numbers, {probes.path} of {widths[1]}; embed "
            "both with the same network"
        )
    out = options.out or probes.path.with_name(f"{probes.path.stem}-matches.tsv")
    read = [gallery.path, probes.path]
    check_output(out, "--out", [*read, *(path.with_suffix(".tsv") for path in read)])
    row_of = dict(zip(gallery.names, range(len(gallery.names)))) if options.leave_self_out else {}
    excluded = np.array([row_of.get(name, -1) for name in probes.names])
    # For the rates at least five.
    cosines, rows = search(gallery.rows, probes.rows, max(options.top, *_RANKS), excluded)
    matched = _write_table(out, options, (gallery.names, probes.names), cosines, rows)
    counts = f"{matched:,} of {len(probes.names):,} probes have a match"
    print_line(f"{out}: {counts} among {len(gallery.names):,} images")
    if gallery.labels and probes.labels:
        counted, rates = identification(gallery.labels, probes.labels, excluded, rows)
        shares = ", ".join(f"rank-{k} {rate:.4f}" for k, rate in zip(_RANKS, rates))
        print(f"identification: {shares}, of {counted:,} probes whose identity is there")


def _write_table(
    path: Path,
    options: argparse.Namespace,
    names: tuple[Sequence[str], Sequence[str]],
    cosines: NDArray[np.float32],
    rows: NDArray[np.int64],
) -> int:
    """Write the matches of all probes; return how many have one."""
    (gallery, probes), matched = names, 0
    with writing(path, "--out"), StagedFiles() as files:
        file = files.open(path)
        file.write(b"probe\trank\tgallery\tcosine\n")
        for probe, *found in zip(probes, cosines[:, : options.top], rows[:, : options.top]):
            lines = [
                f"{probe}\t{rank}\t{gallery[row]}\t{cosine:.6f}\n"
                for rank, (cosine, row) in enumerate(zip(*(one.tolist() for one in found)), 1)
                if row >= 0 and cosine >= options.threshold
            ]
            matched += bool(lines)
            file.write("".join(lines).encode(errors="surrogateescape"))
    return matched


if __name__ == "__main__":
    run_stoppable(main)
