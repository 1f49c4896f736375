"""The sheet of drawn faces: a row of images for each of some people of the synthetic set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks import measure
from data.decoding import decode_rgb
from data.drawn.face_set import draw_identity

_PEOPLE, _IMAGES, _WHITE = 4, 9, 255
_GAP = 4
_QUALITY = 80


def drawn_faces(path: Path) -> None:
    """Draw the first people of the set of ``make train``, as a JPEG."""
    rows = []
    for person in range(_PEOPLE):
        tiles = [decode_rgb(one) for one in draw_identity(person, images=_IMAGES)]
        sides = (0, _GAP), (0, _GAP), (0, 0)
        framed = [np.pad(tile, sides, constant_values=_WHITE) for tile in tiles]
        rows.append(np.concatenate(framed, axis=1))
    sheet = np.concatenate(rows)[:-_GAP, :-_GAP]
    machine = measure.machine().splitlines()[0].removeprefix("- processor: ")
    comment = f"drawn by data.drawn; machine: {machine}; commit: {measure.commit()}".encode()
    Image.fromarray(sheet).save(path, quality=_QUALITY, comment=comment)
