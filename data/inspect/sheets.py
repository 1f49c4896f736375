"""Images of a set: how its images spread over the identities, and what they look like.

Wrong crops, swapped colors and two people under one name are seen at a glance and in no number.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from data.images.decoding import Image, decode_rgb
from data.records.record_set import RecordSet
from data.records.recordio import Payload
from data.verification.bin_file import VerificationSet
from runtime.errors import DataError

_ROWS, _COLUMNS = 10, 8
_PAIR_ROWS, _PAIR_COLUMNS = 10, 3
_TILE_SIDE = 112
_GAP, _WIDE_GAP = 4, 24
_HEADING_HEIGHT, _LINE_HEIGHT, _TITLE_WIDTH, _NAME_WIDTH = 32, 20, 720, 124
_FONT, _FONT_SCALE = cv2.FONT_HERSHEY_SIMPLEX, 0.45
_PAPER, _INK, _PALE, _ALARM = (255, 255, 255), (30, 30, 30), (228, 228, 228), (200, 30, 30)

# Up to so many different numbers each gets a bar of its own.
_MOST_SINGLE_BARS = 60
_BARS = 24
_SIDE_ROOM = 5
# One axis holds both if the largest is no more than so many times the smallest.
_LINEAR_RATIO = 30
_INCHES, _DPI = (9, 5), 110


def draw_histogram(image_counts: NDArray[np.int64], title: str) -> bytes:
    """Draw how many identities have how many images.

    Args:
        image_counts: the images of each identity, int64 ``[identities]``, at least 1 each.
        title: of the image.

    Returns:
        A PNG.
    """
    # It takes longer to import than a wrong option shall take to be answered.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(title=title, xlabel="images per identity", ylabel="identities")
    edges = _bins(image_counts)
    bars, _ = np.histogram(image_counts, edges)
    axes.bar(edges[:-1], bars, np.diff(edges), align="edge", edgecolor="white", linewidth=0.5)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    # Room for the legend above the bars, and for whole numbers beside a single one.
    axes.set_ylim(0, 1.2 * bars.max())
    axes.set_xlim(edges[0] - _SIDE_ROOM, edges[-1] + _SIDE_ROOM)
    if _is_wide(image_counts):
        _make_logarithmic(axes.set_xscale, axes.xaxis)
        axes.set_xlim(0.8 * edges[0], 1.2 * edges[-1])
    if bars.max() > _LINEAR_RATIO * bars[bars > 0].min():
        _make_logarithmic(axes.set_yscale, axes.yaxis)
        # A bar that ends at 1, for one identity, has to begin below.
        axes.set_ylim(0.7, 4 * bars.max())
    for value, name, style in (
        (float(np.median(image_counts)), "median", "-"),
        (float(image_counts.mean()), "mean", "--"),
    ):
        axes.axvline(value, color="black", linestyle=style, label=f"{name} {value:,.1f}")
    axes.legend()
    target = io.BytesIO()
    figure.savefig(target, format="png")
    return target.getvalue()


def draw_identities(records: RecordSet, labels: NDArray[np.int64], title: str) -> bytes:
    """Draw a row of images for each of some identities.

    They are spread over the images of the set, not over its identities: the more images an identity
    has, the more likely it is there, as in training.

    Args:
        records: the set.
        labels: the identity of each image, int64 ``[len(records)]``, -1 where it is unreadable.
        title: of the image.

    Returns:
        A PNG.
    """
    order = np.argsort(labels, kind="stable")
    order = order[labels[order] >= 0]
    identities = np.unique(labels[_spread(order, _ROWS)])
    rows = []
    for identity in identities:
        images = order[slice(*np.searchsorted(labels[order], [identity, identity + 1]))]
        tiles = [_tile(partial(_payload, records, i)) for i in _spread(images, _COLUMNS)]
        name = [f"identity {identity}", f"{len(images):,} image{'s' * (len(images) > 1)}"]
        rows.append(_beside([_text(name, _TILE_SIDE, _NAME_WIDTH), *tiles], _GAP))
    return _sheet(rows, title)


def draw_pairs(pairs: VerificationSet, title: str) -> bytes:
    """Draw pairs of the same identity on the left, of different ones on the right.

    Returns:
        A PNG.
    """
    blocks = []
    for same, heading in ((True, "same identity"), (False, "different identities")):
        chosen = _spread(np.flatnonzero(pairs.same == same), _PAIR_ROWS * _PAIR_COLUMNS)
        drawn = [
            _beside([_tile(partial(_image, pairs, 2 * i + side)) for side in (0, 1)], 0)
            for i in chosen
        ]
        missing = _PAIR_ROWS * _PAIR_COLUMNS - len(drawn)
        drawn += [_blank(_TILE_SIDE, 2 * _TILE_SIDE, _PAPER)] * missing
        rows = [
            _beside(drawn[start : start + _PAIR_COLUMNS], _GAP * 2)
            for start in range(0, len(drawn), _PAIR_COLUMNS)
        ]
        blocks.append(_stack([_text([heading], _HEADING_HEIGHT, rows[0].shape[1]), *rows]))
    return _sheet([_beside(blocks, _WIDE_GAP)], title)


def _bins(image_counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the edges of the bars, between whole numbers."""
    low, high = int(image_counts.min()), int(image_counts.max())
    if _is_wide(image_counts):
        borders = np.geomspace(low, high + 1, _BARS + 1).round()
    else:
        width = 1 + (high - low) // _MOST_SINGLE_BARS
        borders = np.arange(low, high + 1 + width, width, np.float64)
    edges: NDArray[np.float64] = np.unique(borders) - 0.5
    return edges


def _is_wide(image_counts: NDArray[np.int64]) -> bool:
    return bool(image_counts.max() > _LINEAR_RATIO * image_counts.min())


def _make_logarithmic(set_scale: Callable[[str], None], axis: Any) -> None:
    """Give an axis a logarithmic scale with numbers that are written out."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else ""))
    axis.set_minor_formatter(NullFormatter())


def _spread(items: NDArray[np.int64], count: int) -> list[int]:
    """Choose some items, evenly spaced."""
    places = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(np.int64)
    return [int(item) for item in items[places]]


def _payload(records: RecordSet, index: int) -> Payload:
    return records.read(index).payload


def _image(pairs: VerificationSet, index: int) -> Payload:
    return pairs.images[index]


def _tile(read: Callable[[], Payload]) -> Image:
    """Draw an image in a square, or a cross where it cannot be decoded."""
    tile = _blank(_TILE_SIDE, _TILE_SIDE, _PALE)
    last = _TILE_SIDE - 1
    try:
        image = decode_rgb(read())
    except DataError:
        for corners in (((0, 0), (last, last)), ((0, last), (last, 0))):
            cv2.line(tile, *corners, _ALARM, 2, cv2.LINE_AA)
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
    """Write lines onto paper, in the middle of its height."""
    paper = _blank(height, width, _PAPER)
    top = (height - _LINE_HEIGHT * len(lines)) // 2
    for number, line in enumerate(lines, 1):
        baseline = top + _LINE_HEIGHT * number - _LINE_HEIGHT // 4
        cv2.putText(paper, line, (0, baseline), _FONT, _FONT_SCALE, _INK, 1, cv2.LINE_AA)
    return paper


def _beside(images: Sequence[Image], gap: int) -> Image:
    space = _blank(images[0].shape[0], gap, _PAPER)
    spaced = [part for image in images for part in (space, image)]
    return np.concatenate(spaced[1:], axis=1)


def _stack(rows: Sequence[Image]) -> Image:
    """Put rows below one another, to the left."""
    width = max(row.shape[1] for row in rows)
    padded = [
        cv2.copyMakeBorder(row, 0, _GAP, 0, width - row.shape[1], cv2.BORDER_CONSTANT, value=_PAPER)
        for row in rows
    ]
    return np.concatenate(padded)


def _sheet(rows: Sequence[Image], title: str) -> bytes:
    margin = 2 * _GAP
    drawn = _stack([_text([title], _HEADING_HEIGHT, _TITLE_WIDTH), *rows])
    paper = cv2.copyMakeBorder(
        drawn, margin, margin, margin, margin, cv2.BORDER_CONSTANT, value=_PAPER
    )
    done, encoded = cv2.imencode(".png", cv2.cvtColor(paper, cv2.COLOR_RGB2BGR))
    assert done
    payload: bytes = encoded.tobytes()
    return payload
