"""Sheets as ``data.inspect`` writes them: a histogram of the images per identity, and samples.

Samples show at a glance what no number does: wrong crops, swapped colors, two people in one class.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress

import cv2
import numpy as np
from numpy.typing import NDArray

from data.decoding import Image, decode_rgb, encode
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError, Payload
from data.verification.bin_file import VerificationSet
from runtime.errors import DataError
from runtime.process.terminal import one_line

_ROWS, _COLUMNS = 10, 8
# Pairs of each kind; in a row.
_PAIRS, _CHOSEN_COLUMNS = 32, 4
_BATCH_SIDE = 4
_TILE_SIDE = 112
_GAP, _WIDE_GAP = 4, 24
_HEADING_HEIGHT, _LINE_HEIGHT, _TITLE_WIDTH, _HEADING_WIDTH = 32, 20, 720, 200
_FONT, _FONT_SCALE = cv2.FONT_HERSHEY_SIMPLEX, 0.45
_WHITE, _DARK, _PALE, _RED = (255, 255, 255), (30, 30, 30), (228, 228, 228), (200, 30, 30)

# Within a range of so many numbers of images, each number has a bar of its own.
_MAX_SINGLE_BARS = 60
_LOGARITHMIC_BARS = 24
# An axis is linear if the largest number is at most so many times the smallest.
_LINEAR_RATIO = 30
_INCHES, _DPI = (9, 5), 110


SheetRow = tuple[Sequence[str], Sequence[Sequence[tuple[Payload, str]]]]
"""Lines that stand before a row of images, and groups of these: encoded, with a note below each."""


def draw_histogram(image_counts: NDArray[np.int64], title: str) -> bytes:
    """Return a histogram of the images per identity, a PNG.

    ``image_counts`` has the images of each identity, int64 ``[identities]``, at least 1 each.
    """
    # Importing matplotlib takes longer than a wrong option may take to be answered.
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    # matplotlib reads text between dollars as a formula.
    title = one_line(title).replace("$", r"\$")
    axes = figure.add_subplot(title=title, xlabel="images per identity", ylabel="identities")
    low, high = int(image_counts.min()), int(image_counts.max())
    width = 1 + (high - low) // _MAX_SINGLE_BARS
    borders = np.arange(low, high + 1 + width, width, np.float64)
    if high > _LINEAR_RATIO * low:
        axes.set_xscale("log")
        borders = np.geomspace(low, high + 1, _LOGARITHMIC_BARS + 1).round()
    # Between whole numbers.
    edges = (np.unique(borders) - 0.5).tolist()
    bars = np.asarray(axes.hist(image_counts, edges, edgecolor="white", linewidth=0.5)[0])
    if bars.max() > _LINEAR_RATIO * bars[bars > 0].min():
        axes.set_yscale("log")
        # A bar that ends at 1, for one identity, has to begin below.
        axes.set_ylim(bottom=0.7)
    for axis in (axes.xaxis, axes.yaxis):
        is_linear = axis.get_scale() == "linear"
        locator = MaxNLocator(integer=True) if is_linear else LogLocator(subs=(1, 2, 5))
        axis.set_major_locator(locator)
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.set_minor_formatter(NullFormatter())
    median, mean = float(np.median(image_counts)), float(image_counts.mean())
    axes.axvline(median, color="black", linestyle="-", label=f"median {median:,.1f}")
    axes.axvline(mean, color="black", linestyle="--", label=f"mean {mean:,.1f}")
    axes.legend()
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
    for identity in np.unique(labels[_evenly_spaced(order, _ROWS)]):
        images = order[slice(*np.searchsorted(labels[order], [identity, identity + 1]))]
        heading = [f"identity {identity}", f"{len(images):,} image{'s' * (len(images) > 1)}"]
        shown = [(_payload(records, index), "") for index in _evenly_spaced(images, _COLUMNS)]
        rows.append((heading, [shown]))
    return draw_rows(rows, title)


def draw_pairs(pairs: VerificationSet, title: str) -> bytes:
    """Return a sheet with evenly spaced pairs of one identity, then as many of two, a PNG."""
    chosen = [
        pair
        for same in (True, False)
        for pair in _evenly_spaced(np.flatnonzero(pairs.same == same), _PAIRS)
    ]
    notes = ["same identity" if pairs.same[pair] else "different" for pair in chosen]
    return draw_chosen_pairs(pairs, chosen, notes, title)


def draw_batch(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> bytes:
    """Return a sheet with the first images of a batch and the class of each below, a JPEG.

    Args:
        images: uint8 ``[b, channels, height, width]``; one channel is gray, three are RGB.
        labels: int64 ``[b]``.
    """
    cells = []
    for planes, label in list(zip(images, labels.tolist()))[: _BATCH_SIDE**2]:
        pixels = np.broadcast_to(planes.transpose(1, 2, 0), (*planes.shape[1:], 3))
        # Small ones as they are, pixel by pixel.
        is_small = max(pixels.shape) < _TILE_SIDE
        tile = cv2.resize(
            np.ascontiguousarray(pixels),
            (_TILE_SIDE, _TILE_SIDE),
            interpolation=cv2.INTER_NEAREST if is_small else cv2.INTER_AREA,
        )
        cells.append(_join_column([tile, _text([str(label)], _LINE_HEIGHT, _TILE_SIDE)]))
    return encode(_join_column(_rows_of(cells, _BATCH_SIDE, _GAP)), lossless=False)


def draw_chosen_pairs(
    pairs: VerificationSet, chosen: Sequence[int], notes: Sequence[str], title: str
) -> bytes:
    """Return a sheet with these pairs, row by row, and a note below each, a PNG."""
    drawn = []
    for pair, note in zip(chosen, notes):
        tiles = [_tile(image) for image in pairs.images[2 * pair : 2 * pair + 2]]
        below = _text([note], _LINE_HEIGHT, 2 * _TILE_SIDE)
        drawn.append(_join_column([_join_row(tiles, 0), below]))
    return _sheet(_rows_of(drawn, _CHOSEN_COLUMNS, _GAP * 2), title)


def draw_rows(rows: Sequence[SheetRow], title: str) -> bytes:
    """Return a sheet with these rows, at least one, a PNG."""
    drawn = []
    for heading, groups in rows:
        shown = [
            _join_row([_with_note(_tile(payload), note) for payload, note in group], _GAP)
            for group in groups
            if group
        ]
        # As high as a tile and its note.
        before = _pad(_text(heading, _TILE_SIDE, _HEADING_WIDTH), 0, _LINE_HEIGHT, 0, 0)
        drawn.append(_join_row([before, _join_row(shown, _WIDE_GAP)], _GAP))
    return _sheet(drawn, title)


def _with_note(tile: Image, note: str) -> Image:
    return np.concatenate([tile, _text([note], _LINE_HEIGHT, _TILE_SIDE)])


def _evenly_spaced(items: NDArray[np.int64], count: int) -> list[int]:
    """Return ``count`` of the items, or all if there are fewer."""
    chosen = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(np.int64)
    return [int(item) for item in items[chosen]]


def _payload(records: RecordSet, index: int) -> Payload:
    """Return an encoded image; empty if it cannot be read."""
    with suppress(DataError):
        return records.image(index)[0]
    return b""


def _tile(payload: Payload) -> Image:
    """Draw an image in a square, or a cross if it cannot be decoded."""
    tile = _blank(_TILE_SIDE, _TILE_SIDE, _PALE)
    last = _TILE_SIDE - 1
    try:
        image = decode_rgb(payload)
    except BrokenRecordError:
        for corners in (((0, 0), (last, last)), ((0, last), (last, 0))):
            cv2.line(tile, *corners, _RED, 2, cv2.LINE_AA)
        return tile
    scale = _TILE_SIDE / max(image.shape[:2])
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    resized = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    top, left = (_TILE_SIDE - height) // 2, (_TILE_SIDE - width) // 2
    tile[top : top + height, left : left + width] = resized
    return tile


def _blank(height: int, width: int, color: tuple[int, int, int]) -> Image:
    return np.full((height, width, 3), color, np.uint8)


def _text(lines: Sequence[str], height: int, width: int) -> Image:
    """Return an image with lines of text, centered vertically."""
    image = _blank(height, width, _WHITE)
    top = (height - _LINE_HEIGHT * len(lines)) // 2
    for number, line in enumerate(lines, 1):
        baseline = top + _LINE_HEIGHT * number - _LINE_HEIGHT // 4
        # OpenCV ends the process at a surrogate.
        line = one_line(line)
        cv2.putText(image, line, (0, baseline), _FONT, _FONT_SCALE, _DARK, 1, cv2.LINE_AA)
    return image


def _join_row(images: Sequence[Image], gap: int) -> Image:
    space = _blank(images[0].shape[0], gap, _WHITE)
    spaced = [part for image in images for part in (space, image)]
    return np.concatenate(spaced[1:], axis=1)


def _rows_of(images: Sequence[Image], columns: int, gap: int) -> list[Image]:
    """Return rows of so many images each."""
    starts = range(0, len(images), columns)
    return [_join_row(images[start : start + columns], gap) for start in starts]


def _join_column(rows: Sequence[Image]) -> Image:
    """Return the rows below one another, aligned to the left."""
    width = max(row.shape[1] for row in rows)
    return np.concatenate([_pad(row, 0, _GAP, 0, width - row.shape[1]) for row in rows])


def _pad(image: Image, top: int, bottom: int, left: int, right: int) -> Image:
    return np.pad(image, ((top, bottom), (left, right), (0, 0)), constant_values=max(_WHITE))


def _sheet(rows: Sequence[Image], title: str) -> bytes:
    """Return the rows under their title, with a margin around, as a PNG."""
    margin = 2 * _GAP
    drawn = _join_column([_text([title], _HEADING_HEIGHT, _TITLE_WIDTH), *rows])
    return encode(_pad(drawn, margin, margin, margin, margin), lossless=True)
