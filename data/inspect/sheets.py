"""Sheets as ``data.inspect`` writes them: a histogram of the images per identity, and samples.

Samples show at a glance what no number does: wrong crops, swapped colors, two people in one class.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from data.decoding import Image, decode_rgb, encode
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError, Payload
from data.verification.bin_file import VerificationSet
from runtime.errors import DataError, one_line

_ROWS, _COLUMNS = 10, 8
# Pairs of each kind; in a row.
_PAIRS, _PAIR_COLUMNS = 32, 4
_BATCH_SIDE = 4
_TILE_SIDE = 112
_GAP, _WIDE_GAP, _MARGIN = 4, 24, 8
_TITLE_HEIGHT, _LINE_HEIGHT, _HEADING_WIDTH, _LEAST_WIDTH = 36, 20, 200, 720
_FONT, _FONT_SCALE = cv2.FONT_HERSHEY_SIMPLEX, 0.45
_WHITE, _DARK, _PALE, _RED = (255, 255, 255), (30, 30, 30), (228, 228, 228), (200, 30, 30)

# Each number of images has a bar of its own if there are at most so many.
_MAX_BARS = 60
_INCHES, _DPI = (9, 5), 110

SheetRow = tuple[Sequence[str], Sequence[Sequence[tuple[Payload, str]]]]
"""Lines that stand before a row of images, and groups of these: encoded, with a note below each."""


def draw_histogram(image_counts: NDArray[np.int64], title: str) -> bytes:
    """Return a histogram of the images per identity, a PNG.

    ``image_counts`` has the images of each identity, int64 ``[identities]``, at least 1 each.
    """
    # Importing matplotlib takes longer than a wrong option may take to be answered.
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    # matplotlib reads text between dollars as a formula.
    title = one_line(title).replace("$", r"\$")
    axes = figure.add_subplot(title=title, xlabel="images per identity", ylabel="identities")
    low, high = int(image_counts.min()), int(image_counts.max())
    if high - low < _MAX_BARS:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        borders = np.arange(low, high + 2, dtype=np.float64)
    else:
        axes.set_xscale("log")
        borders = np.geomspace(low, high + 1, _MAX_BARS + 1).round()
    # Between whole numbers.
    edges = (np.unique(borders) - 0.5).tolist()
    axes.hist(image_counts, edges, log=True, edgecolor="white", linewidth=0.5)
    # A bar that ends at 1, for one identity, has to begin below.
    axes.set_ylim(bottom=0.7)
    target = io.BytesIO()
    figure.savefig(target, format="png")
    return target.getvalue()


def draw_identities(records: RecordSet, labels: NDArray[np.int64], title: str) -> bytes:
    """Return a sheet with a row of images for each of some identities, a PNG.

    They are the identities of evenly spaced images: as in training, an identity with more images is
    more likely to be drawn. ``labels`` has the identity of each image, int64 ``[len(records)]``,
    -1 where it is unreadable.
    """
    order = np.argsort(labels, kind="stable")
    order = order[labels[order] >= 0]
    rows: list[SheetRow] = []
    for identity in np.unique(labels[evenly_spaced(order, _ROWS)]):
        images = order[slice(*np.searchsorted(labels[order], [identity, identity + 1]))]
        heading = [f"identity {identity}", f"{len(images):,} image{'s' * (len(images) > 1)}"]
        shown = [(payload_of(records, index), "") for index in evenly_spaced(images, _COLUMNS)]
        rows.append((heading, [shown]))
    return draw_rows(rows, title)


def draw_pairs(pairs: VerificationSet, title: str) -> bytes:
    """Return a sheet with evenly spaced pairs of one identity, then as many of two, a PNG."""
    kinds = (np.flatnonzero(kind) for kind in (pairs.same, ~pairs.same))
    chosen = [pair for kind in kinds for pair in evenly_spaced(kind, _PAIRS)]
    notes = ["same identity" if pairs.same[pair] else "different" for pair in chosen]
    return draw_chosen_pairs(pairs, chosen, notes, title)


def draw_chosen_pairs(
    pairs: VerificationSet, chosen: Sequence[int], notes: Sequence[str], title: str
) -> bytes:
    """Return a sheet with these pairs, row by row, and a note below each, a PNG."""
    groups = [
        [(pairs.images[2 * pair], note), (pairs.images[2 * pair + 1], "")]
        for pair, note in zip(chosen, notes)
    ]
    starts = range(0, len(groups), _PAIR_COLUMNS)
    return draw_rows([([], groups[start : start + _PAIR_COLUMNS]) for start in starts], title)


def draw_batch(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> bytes:
    """Return a sheet with the first images of a batch and the class of each below, a JPEG.

    Args:
        images: uint8 ``[b, channels, height, width]``; one channel is gray, three are RGB.
        labels: int64 ``[b]``.
    """
    shown = [
        (encode(np.stack([*planes] * (3 // len(planes)), axis=-1), lossless=True), str(label))
        for planes, label in zip(images[: _BATCH_SIDE**2], labels.tolist())
    ]
    starts = range(0, len(shown), _BATCH_SIDE)
    rows: list[SheetRow] = [([], [shown[start : start + _BATCH_SIDE]]) for start in starts]
    return draw_rows(rows, "images of a batch, with their classes", lossless=False)


def draw_rows(rows: Sequence[SheetRow], title: str, *, lossless: bool = True) -> bytes:
    """Return a sheet with these rows, at least one, under their title: a PNG or a JPEG.

    Headings take a column only if there are any.
    """
    step = _TILE_SIDE + _GAP
    row_height = _TILE_SIDE + _LINE_HEIGHT + _GAP
    left = _MARGIN + _HEADING_WIDTH * any(heading for heading, _ in rows)
    width = max(sum(len(group) * step + _WIDE_GAP for group in groups) for _, groups in rows)
    height = _MARGIN + _TITLE_HEIGHT + len(rows) * row_height + _MARGIN
    paper = np.full((height, max(left + width, _LEAST_WIDTH), 3), _WHITE, np.uint8)
    _write(paper, [title], _MARGIN, _MARGIN)
    for top, (heading, groups) in zip(range(_MARGIN + _TITLE_HEIGHT, height, row_height), rows):
        _write(paper, heading, _MARGIN, top)
        place = left
        for group in filter(None, groups):
            for payload, note in group:
                paper[top : top + _TILE_SIDE, place : place + _TILE_SIDE] = _tile(payload)
                _write(paper, [note], place, top + _TILE_SIDE)
                place += step
            place += _WIDE_GAP
    return encode(paper, lossless)


def _write(paper: Image, lines: Sequence[str], left: int, top: int) -> None:
    for number, line in enumerate(lines, 1):
        baseline = top + _LINE_HEIGHT * number - _LINE_HEIGHT // 4
        # OpenCV ends the process at a surrogate.
        line = one_line(line)
        cv2.putText(paper, line, (left, baseline), _FONT, _FONT_SCALE, _DARK, 1, cv2.LINE_AA)


def _tile(payload: Payload) -> Image:
    """Draw an image in a square, or a cross if it cannot be decoded."""
    tile = np.full((_TILE_SIDE, _TILE_SIDE, 3), _PALE, np.uint8)
    last = _TILE_SIDE - 1
    try:
        image = decode_rgb(payload)
    except BrokenRecordError:
        for corners in (((0, 0), (last, last)), ((0, last), (last, 0))):
            cv2.line(tile, *corners, _RED, 2, cv2.LINE_AA)
        return tile
    scale = _TILE_SIDE / max(image.shape[:2])
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    # Small ones as they are, pixel by pixel.
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
    top, left = (_TILE_SIDE - height) // 2, (_TILE_SIDE - width) // 2
    resized = cv2.resize(image, (width, height), interpolation=method)
    tile[top : top + height, left : left + width] = resized
    return tile


def evenly_spaced(items: NDArray[Any], count: int) -> list[int]:
    """Return ``count`` of the items, or all if there are fewer."""
    chosen = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(np.int64)
    return [int(item) for item in items[chosen]]


def payload_of(records: RecordSet, index: int) -> Payload:
    """Return an encoded image; empty if it cannot be read."""
    with suppress(DataError):
        return records.image(index)[0]
    return b""
