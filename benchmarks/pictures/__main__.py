"""Draws all pictures anew: ``python -m benchmarks.pictures``, or ``make pictures``.

It measures nothing. ``python -m benchmarks.quick_start`` and the benchmarks write what is drawn
here, in ``docs/results`` and ``benchmarks/results``; the same files give the same pictures. The
drawing of the method (``method.svg``) is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.pictures import canvas, drawings
from runtime.command_line import Parser

FOLDER = canvas.ROOT / "docs" / "pictures"
DRAWN: Mapping[str, Callable[[Path], None]] = {
    "drawn-faces.jpg": drawings.drawn_faces,
    "quick-start.svg": drawings.quick_start,
    "embeddings.svg": drawings.embeddings,
    "cifar10.svg": drawings.cifar10,
    "schemes.svg": drawings.schemes,
    "scaling.svg": drawings.scaling,
    "speed.svg": drawings.speed,
}


def main() -> None:
    """Draw each into docs/pictures."""
    Parser(prog="python -m benchmarks.pictures", description="Draw all pictures.").parse_args()
    for name, draw in DRAWN.items():
        draw(FOLDER / name)
        print((FOLDER / name).relative_to(canvas.ROOT))


if __name__ == "__main__":
    main()
