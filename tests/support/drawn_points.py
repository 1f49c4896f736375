"""Where the five points of a drawn face lie, as ``data.align`` needs them."""

from __future__ import annotations

import numpy as np

from data.drawn import faces
from data.drawn.faces import Person, View


def five_points(person: Person, view: View, size: tuple[int, int]) -> np.ndarray:
    """Return left and right eye, nose, and corners of the mouth, in pixels, ``[5, 2]``."""
    tip = person.eye_height + 0.02 + person.nose_length
    corner = person.mouth_width * (1 + view.smile)
    mouth = person.mouth_height - view.smile * 0.8
    points = np.array(
        [
            [-person.eye_distance, person.eye_height],
            [person.eye_distance, person.eye_height],
            [0.0, tip - 0.03],
            [-corner, mouth],
            [corner, mouth],
        ]
    )
    sketch = faces._Sketch(person, view)
    pixels = sketch._project(points, np.ones(5), size)
    return np.asarray(pixels) / (1 << faces._SHIFT)
