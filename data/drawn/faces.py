"""Faces drawn by a program, for first runs, tests and examples on machines without data.

They pose the problem of real faces: a network has to find what tells two people apart (the shape
of face, eyes, brows, nose and mouth, hair, beard, glasses: a ``Person``) behind what differs
between two images of one person (pose and expression, a ``View``; background, light and its color,
sharpness, noise).

Coordinates of a face: x to the right, y down, z towards the viewer; the head reaches from -1 to 1
in y, eyes lie a little above 0.
"""

from __future__ import annotations

from statistics import NormalDist

import cv2
import numpy as np
from numpy.typing import NDArray

from data.decoding import Image

Points = NDArray[np.float64]
Color = NDArray[np.float64]

# Half the height of a head at scale 1, as a fraction of the image's height.
_HALF_HEAD = 0.37
# The number of fractional bits of the coordinates that OpenCV gets.
_SHIFT = 4
_ANGLES = np.linspace(0, 2 * np.pi, 40, endpoint=False)
_COSINE, _SINE = np.cos(_ANGLES), np.sin(_ANGLES)
_ACROSS = np.linspace(-1, 1, 17)
_LIGHT_SKIN, _DARK_SKIN = np.array([236.0, 196.0, 172.0]), np.array([128.0, 86.0, 64.0])
_HAIR_COLORS = np.array(
    [[30, 24, 22], [62, 42, 30], [104, 70, 42], [168, 124, 70], [150, 70, 36], [150, 148, 146]],
    float,
)
_IRIS_COLORS = np.array([[70, 44, 26], [60, 100, 150], [70, 110, 70], [110, 110, 110]])
_GLASSES_COLORS = np.array([[20, 20, 20], [120, 60, 30], [160, 140, 80]])
_WHITE, _BLACK = np.full(3, 245.0), np.full(3, 12.0)
# The brightness that a change of contrast leaves as it is.
_MIDDLE = 110.0
# Noise by table: ten times faster than normal random numbers.
_NORMAL_QUANTILES = np.array([NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)])


class Person:
    """What all images of an identity have in common. Lengths are in half heads."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Draw an identity."""

        def between(low: float, high: float) -> float:
            return float(rng.uniform(low, high))

        def sometimes(share: float, value: float) -> float:
            return value if rng.random() < share else 0.0

        self.skin = _LIGHT_SKIN + (_DARK_SKIN - _LIGHT_SKIN) * between(0.0, 1.0)
        self.skin += rng.normal(0, 5, 3)
        self.hair = _HAIR_COLORS[rng.integers(len(_HAIR_COLORS))] * between(0.8, 1.2)
        self.iris = _IRIS_COLORS[rng.integers(4)]
        self.width = between(0.62, 0.86)
        # Exponent of the lower contour: square below 1, pointed above.
        self.jaw = between(0.55, 1.25)
        self.hairline = between(0.42, 0.78)
        self.hairline_bend = between(-0.5, 0.7)
        self.parting = between(-0.45, 0.45)
        self.volume = between(0.03, 0.3)
        # The y at which the hair beside the face ends; -1 for short hair.
        self.hair_length = between(-0.2, 1.25) if rng.random() < 0.45 else -1.0
        self.bald = bool(rng.random() < 0.1)
        self.ear = between(0.1, 0.22)
        self.eye_distance = between(0.25, 0.41)
        self.eye_height = between(-0.22, 0.02)
        self.eye_width = between(0.1, 0.18)
        self.eye_opening = between(0.35, 0.75)
        self.eye_tilt = between(-0.25, 0.25)
        self.brow_height = between(0.12, 0.26)
        self.brow_thickness = between(0.02, 0.085)
        self.brow_tilt = between(-0.35, 0.35)
        self.brow_length = between(0.13, 0.24)
        self.nose_length = between(0.3, 0.55)
        self.nose_width = between(0.09, 0.21)
        self.mouth_height = between(0.48, 0.66)
        self.mouth_width = between(0.18, 0.36)
        self.lips = between(0.035, 0.12)
        # Thickness; 0 for none.
        self.moustache = sometimes(0.2, between(0.05, 0.12))
        # How far below the mouth's height the beard begins; 0 for none.
        self.beard = sometimes(0.25, between(0.02, 0.3))
        # Exponent of the frame: 1 round, below 1 angular; 0 for none.
        self.glasses = sometimes(0.3, between(0.35, 1.0))
        self.glasses_size = between(0.19, 0.28)
        self.glasses_color = _GLASSES_COLORS[rng.integers(3)]
        # Its position; outside of the face for none.
        self.mole = np.array([between(-0.5, 0.5), between(0.1, 0.8)])
        self.mole += (rng.random() > 0.3) * 9.0


class View:
    """The pose and the expression of one image."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Draw a view."""
        self.yaw = float(np.clip(rng.normal(0, 0.22), -0.6, 0.6))
        self.pitch = float(np.clip(rng.normal(0, 0.12), -0.3, 0.3))
        self.roll = float(rng.normal(0, 0.12))
        self.scale = float(rng.uniform(0.86, 1.14))
        # The face's center moves by this, in image widths, ``[2]``.
        self.shift = rng.uniform(-0.07, 0.07, 2)
        self.smile = float(rng.normal(0.03, 0.06))
        self.mouth_opening = float(max(0.0, rng.normal(-0.02, 0.06)))
        self.eyes_open = float(rng.uniform(0.55, 1.15))
        self.brows_raised = float(rng.normal(0, 0.025))
        self.gaze = float(rng.uniform(-0.35, 0.35))


def render(person: Person, view: View, size: tuple[int, int], rng: np.random.Generator) -> Image:
    """Return an image of a person: uint8 ``[height, width, 3]``, RGB.

    Clothes, background, light, blur and noise are drawn from ``rng``; ``size`` is height and width.
    """
    image = _background(size, rng)
    sketch = _Sketch(person, view, image)
    _draw_head(sketch, person, rng)
    _draw_eyes(sketch, person, view)
    _draw_nose(sketch, person)
    _draw_mouth(sketch, person, view)
    _draw_hair(sketch, person)
    if person.glasses:
        _draw_glasses(sketch, person)
    return _photograph(image, rng)


class _Sketch:
    """Draws shapes on a head, in an image."""

    def __init__(self, person: Person, view: View, image: Image) -> None:
        self._person, self._view, self._image = person, view, image

    def fill(self, points: Points, color: Color, depth: float = 1.0) -> None:
        """Draw a polygon; at ``depth`` 1 on the front of the head, at 0 in its outline."""
        pixels = [self._project(points, depth)]
        cv2.fillPoly(self._image, pixels, color.tolist(), cv2.LINE_AA, _SHIFT)

    def line(self, points: Points, color: Color, *, closed: bool = False, width: int = 1) -> None:
        """Draw a line on the front of the head."""
        pixels = [self._project(points, 1.0)]
        cv2.polylines(self._image, pixels, closed, color.tolist(), width, cv2.LINE_AA, _SHIFT)

    def _project(self, points: Points, depth: float) -> NDArray[np.int32]:
        """Rotate the head and move it into the image; return OpenCV's fixed-point pixels."""
        view = self._view
        x, y = points.T
        # The head is half an ellipsoid: its front moves when it turns, its outline hardly does.
        bulge = 1 - 0.8 * (x / self._person.width) ** 2 - 0.6 * y**2
        z = 0.7 * depth * np.sqrt(np.maximum(bulge, 0.0))
        turned_x = np.cos(view.yaw * depth) * x + np.sin(view.yaw) * z
        turned_y = np.cos(view.pitch * depth) * y + np.sin(view.pitch) * z
        cosine, sine = np.cos(view.roll), np.sin(view.roll)
        rolled = [cosine * turned_x - sine * turned_y, sine * turned_x + cosine * turned_y]
        height, width = self._image.shape[:2]
        center = np.array([width, height]) * (0.5 + view.shift)
        pixels = _points(*rolled) * (_HALF_HEAD * height * view.scale) + center
        fixed_point: NDArray[np.int32] = np.rint(pixels * (1 << _SHIFT)).astype(np.int32)
        return fixed_point


def _points(x: NDArray[np.float64], y: NDArray[np.float64]) -> Points:
    return np.array([x, y]).T


def _band(x: NDArray[np.float64], upper: Points, lower: Points) -> Points:
    """Return the polygon between two lines over the same x."""
    return np.concatenate([_points(x, upper), _points(x, lower)[::-1]])


def _ellipse(x: float, y: float, width: float, height: float, tilt: float = 0.0) -> Points:
    """Return points around (x, y), ``[40, 2]``; a tilt lowers the right side."""
    across = width * _COSINE
    return _points(x + across, y + height * _SINE + tilt * across)


def _contour(person: Person) -> Points:
    """Return the outline of the head without hair."""
    exponent = np.where(_SINE > 0, person.jaw, 0.85)
    x = person.width * np.sign(_COSINE) * np.abs(_COSINE) ** exponent
    return _points(x, _SINE)


def _draw_head(sketch: _Sketch, person: Person, rng: np.random.Generator) -> None:
    shadow = person.skin * 0.8
    outline = _contour(person)
    sketch.fill(_ellipse(0, 1.95, 1.25, 0.75), rng.uniform(20, 230, 3), 0)
    if person.hair_length > -1 and not person.bald:
        reach = person.width + person.volume
        sides = np.array([[reach, -0.3], [reach, person.hair_length]])
        both = np.concatenate([sides, (sides * [-1, 1])[::-1]])
        sketch.fill(both, person.hair * 0.85, 0)
    neck = 0.6 * person.width
    sketch.fill(np.array([[-neck, 0.5], [neck, 0.5], [neck, 1.4], [-neck, 1.4]]), shadow, 0)
    for side in (-1, 1):
        sketch.fill(_ellipse(side * person.width, 0.05, 0.1, person.ear), shadow, 0)
    sketch.fill(outline, person.skin, 0)
    if person.beard:
        _draw_beard(sketch, person, outline)
    sketch.fill(_ellipse(person.mole[0], person.mole[1], 0.03, 0.03), person.skin * 0.4)


def _draw_beard(sketch: _Sketch, person: Person, outline: Points) -> None:
    top = person.mouth_height - 0.25 + person.beard
    lower = outline[outline[:, 1] > top]
    dip = 0.25 * (1 - _ACROSS**2)
    inner = _points(_ACROSS * person.width * 0.8, top + dip)
    beard = np.concatenate([lower[np.argsort(-lower[:, 0])], inner])
    sketch.fill(beard, 0.25 * person.skin + 0.75 * person.hair, 0.3)


def _draw_eyes(sketch: _Sketch, person: Person, view: View) -> None:
    opening = person.eye_width * person.eye_opening * view.eyes_open
    brow = person.eye_height - person.brow_height - view.brows_raised
    for side in (-1, 1):
        x, y = side * person.eye_distance, person.eye_height
        tilt = side * person.eye_tilt
        socket = _ellipse(x, y, person.eye_width * 1.25, opening * 1.6, tilt)
        sketch.fill(socket, person.skin * 0.82)
        eye = _ellipse(x, y, person.eye_width, opening, tilt)
        sketch.fill(eye, _WHITE)
        iris = min(opening, person.eye_width * 0.55)
        x_iris = x + view.gaze * person.eye_width
        sketch.fill(_ellipse(x_iris, y, iris, iris), person.iris * 1.0)
        sketch.fill(_ellipse(x_iris, y, iris * 0.5, iris * 0.5), _BLACK)
        sketch.line(eye[20:], person.skin * 0.35)
        _draw_brow(sketch, person, side, brow)


def _draw_brow(sketch: _Sketch, person: Person, side: int, y: float) -> None:
    x = side * (person.eye_distance + person.brow_length * _ACROSS)
    middle = y + person.brow_tilt * person.brow_length * _ACROSS + 0.03 * _ACROSS**2
    half = person.brow_thickness / 2 * (1.2 - 0.7 * _ACROSS)
    color = np.minimum(person.hair, person.skin * 0.7) * 0.8
    sketch.fill(_band(x, middle - half, middle + half), color)


def _draw_nose(sketch: _Sketch, person: Person) -> None:
    root, half = person.eye_height + 0.02, person.nose_width
    tip = root + person.nose_length
    bridge = np.array([[0.2 * half, root], [0.45 * half, tip - 0.1], [half, tip]])
    sketch.fill(np.concatenate([bridge, [[0, tip + 0.02]]]), person.skin * 0.88)
    highlight = np.minimum(person.skin * 1.1, 255)
    sketch.fill(_ellipse(0, tip - 0.03, half * 0.5, half * 0.45), highlight)
    for side in (-1, 1):
        sketch.fill(_ellipse(side * half * 0.55, tip + 0.02, half * 0.35, 0.03), person.skin * 0.45)
        x = side * half
        wing = np.array([[x * 0.8, tip - 0.08], [x, tip], [x * 0.7, tip + 0.03]])
        sketch.line(wing, person.skin * 0.6)


def _draw_mouth(sketch: _Sketch, person: Person, view: View) -> None:
    x = _ACROSS * person.mouth_width * (1 + view.smile)
    middle = person.mouth_height + view.smile * (1 - 2 * _ACROSS**2) * 0.8
    arch = 1 - _ACROSS**2
    upper = middle - arch * (person.lips * 0.7 + view.mouth_opening * 0.3)
    lower = middle + arch * (person.lips + view.mouth_opening)
    if person.moustache:
        top = upper - person.moustache * (1.3 - np.abs(_ACROSS))
        color = 0.15 * person.skin + 0.85 * person.hair
        sketch.fill(_band(x * 1.15, top, upper + 0.02), color)
    lips = person.skin * [0.86, 0.6, 0.6]
    sketch.fill(_band(x, upper, lower), lips)
    gap = arch * view.mouth_opening
    sketch.fill(_band(x, middle - gap * 0.3, middle + gap), np.array([90.0, 30.0, 30.0]))
    sketch.line(_points(x, middle), lips * 0.55)


def _draw_hair(sketch: _Sketch, person: Person) -> None:
    if person.bald:
        return
    outline = _contour(person)
    upper = outline[outline[:, 1] < -0.05]
    upper = upper[np.argsort(upper[:, 0])]
    crown = upper * [1 + 0.5 * person.volume, 1 + person.volume]
    x = -_ACROSS
    edge = -person.hairline + person.hairline_bend * 0.5 * (x - person.parting) ** 2
    edge += 0.25 * np.abs(x) ** 6
    front = _points(x * person.width, np.minimum(edge, -0.05))
    sketch.fill(np.concatenate([crown, front]), person.hair, 0.25)


def _draw_glasses(sketch: _Sketch, person: Person) -> None:
    size, color = person.glasses_size, person.glasses_color * 1.0
    x = size * np.sign(_COSINE) * np.abs(_COSINE) ** person.glasses
    y = 0.85 * size * np.sign(_SINE) * np.abs(_SINE) ** person.glasses
    distance = max(person.eye_distance, size + 0.03)
    for side in (-1, 1):
        center = np.array([side * distance, person.eye_height + 0.03])
        sketch.line(_points(x, y) + center, color, closed=True, width=2)
        edge = side * (distance + size)
        sketch.line(np.array([[edge, center[1]], [side * person.width, center[1] - 0.05]]), color)
    bridge = distance - size
    ends = np.array([[-bridge, person.eye_height], [bridge, person.eye_height]])
    sketch.line(ends, color, width=2)


def _background(size: tuple[int, int], rng: np.random.Generator) -> Image:
    """Return blurred patches of mostly pale colors."""
    cells = rng.uniform(0, 255, (int(rng.integers(2, 6)), int(rng.integers(2, 6)), 3))
    cells += 0.6 * (cells.mean(axis=2, keepdims=True) - cells)
    patches: Image = cv2.resize(cells.astype(np.uint8), size[::-1], interpolation=cv2.INTER_CUBIC)
    return patches


def _photograph(image: Image, rng: np.random.Generator) -> Image:
    """Add direction and color of the light, contrast, blur and noise."""
    height, width = image.shape[:2]
    angle, strength = rng.uniform(0, 2 * np.pi), rng.uniform(0, 0.6)
    gains = rng.uniform(0.55, 1.25) * rng.uniform(0.8, 1.2, 3)
    contrast, brightness = rng.uniform(0.6, 1.15), rng.uniform(-25, 40)
    # Rows of width * 3 numbers: NumPy is slow where the innermost axis has three entries only.
    down = np.linspace(-1, 1, height, dtype=np.float32)[:, None] * np.float32(np.sin(angle))
    right = np.repeat(np.linspace(-1, 1, width, dtype=np.float32) * np.float32(np.cos(angle)), 3)
    shown = 1 + np.float32(strength) * (down + right)
    shown *= np.tile(gains * contrast, width).astype(np.float32)
    shown *= image.reshape(height, width * 3)
    shown += np.float32(_MIDDLE * (1 - contrast) + brightness)
    blurred = cv2.GaussianBlur(shown.reshape(image.shape), (0, 0), rng.uniform(0.4, 1.3))
    noise = (rng.uniform(2, 12) * _NORMAL_QUANTILES).astype(np.float32)
    blurred += cv2.LUT(np.frombuffer(rng.bytes(image.size), np.uint8).reshape(image.shape), noise)
    photograph: Image = np.minimum(np.maximum(blurred, 0), 255).astype(np.uint8)
    return photograph
