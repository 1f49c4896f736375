"""The lists of IJB-B and IJB-C, in the form in which InsightFace distributes them.

A folder has the images in ``loose_crop`` and the lists in ``meta``, named after the set: a line per
face with its image, five points and the detector's score; a line per face with its template and its
media; the pairs of templates; and tables of the templates of galleries and probes. Whoever made
them is not the user: every line is checked, and the first wrong one is named.
"""

from __future__ import annotations

import io
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Optional, TypeVar

import numpy as np
from numpy.typing import NDArray

from data.align.similarity import estimate, is_no_face
from runtime.errors import DataError
from runtime.files import open_regular

Ints = NDArray[np.int64]
_Row = TypeVar("_Row")

IMAGES = "loose_crop"
GALLERIES = {"ijbb": ("gallery_S1", "gallery_S2"), "ijbc": ("gallery_G1", "gallery_G2")}
"""The words in the names of the two galleries, by how the names of a set's lists begin."""

_POINT_NUMBERS = 10
# At most 18 digits fit into 64 bits.
_MAX_DIGITS = 18
# Images have at most 2^20 pixels in a row; not a number is not smaller either.
_LARGEST = 1e9


class Lists(NamedTuple):
    """Where the lists of a folder are.

    Attributes:
        prefix: of their names, ijbb or ijbc.
        images: the folder of the images.
        points: image, five points and score of each face.
        media: image, template and media of each face.
        pairs: two templates and whether they show one person.
        galleries: tables of templates and subjects.
        probes: likewise.
    """

    prefix: str
    images: Path
    points: Path
    media: Path
    pairs: Path
    galleries: Sequence[Path]
    probes: Path

    @property
    def name(self) -> str:
        """The name of the set, as publications write it."""
        return f"IJB-{self.prefix[-1].upper()}"


class Faces(NamedTuple):
    """All faces, in the order of their lines.

    Attributes:
        names: of the images, n.
        points: of each face, [n, 5, 2].
        scores: the detector's [n].
        template_ids: of the templates, ascending [T].
        templates: for each face the row of its template [n].
        media: for each face the number of its image or video [n].
    """

    names: list[str]
    points: NDArray[np.float64]
    scores: NDArray[np.float64]
    template_ids: Ints
    templates: Ints
    media: Ints


class Pairs(NamedTuple):
    """The pairs of the 1:1 protocol: the rows of both templates, and if they show one person."""

    first: NDArray[np.int32]
    second: NDArray[np.int32]
    same: NDArray[np.bool_]


class Subjects(NamedTuple):
    """The templates of a gallery, or the probes: their rows, ascending, and the person of each."""

    templates: Ints
    subjects: Ints


def find_lists(folder: Path) -> Lists:
    """Return the names of the lists in a folder, which is IJB-B's or IJB-C's by their prefix.

    Raises:
        DataError: the folder has the lists of neither, or of both.
    """
    points = {prefix: folder / "meta" / f"{prefix}_name_5pts_score.txt" for prefix in GALLERIES}
    found = [prefix for prefix, path in points.items() if os.path.isfile(path)]
    if len(found) != 1:
        names = " or ".join(path.name for path in points.values())
        raise DataError(
            f"{folder / 'meta'} has to hold {names}, and has "
            f"{'those of both sets' if found else 'neither of these'}; give the folder IJBB or "
            "IJBC of InsightFace's release"
        )
    (prefix,) = found
    media, pairs, probes, *galleries = (
        folder / "meta" / f"{prefix}_{name}"
        for name in (
            *("face_tid_mid.txt", "template_pair_label.txt", "1N_probe_mixed.csv"),
            *(f"1N_{word}.csv" for word in GALLERIES[prefix]),
        )
    )
    return Lists(prefix, folder / IMAGES, points[prefix], media, pairs, galleries, probes)


def read_faces(lists: Lists) -> Faces:
    """Read the two lists with a line per face, which have the same images in the same order.

    Raises:
        DataError: a list is missing, empty, or has a wrong line, or they do not fit.
    """
    said = f"the name of an image within {IMAGES}, x and y of five points, and a score"
    names: list[str] = []
    numbers = array("d")
    for name, row in _read(lists.points, _face, said):
        names.append(name)
        numbers.extend(row)
    if not names:
        raise DataError(f"{lists.points} is empty; take it from InsightFace's release")
    expected = iter(names)

    def place(words: list[str]) -> tuple[int, int]:
        name, template, media = words
        if name != next(expected, None):
            raise ValueError
        return _integer(template), _integer(media)

    said = f"the image in this place of {lists.points.name}, a template and a media"
    places = np.array(list(_read(lists.media, place, said)), np.int64).reshape(-1, 2)
    if len(places) != len(names):
        raise DataError(
            f"{lists.media} has {len(places):,} faces, {lists.points} {len(names):,}; take both "
            "lists from one release, and download what is cut off again"
        )
    table = np.array(numbers).reshape(len(names), -1)
    points, scores = table[:, :_POINT_NUMBERS].reshape(-1, 5, 2), table[:, _POINT_NUMBERS]
    ids, rows = np.unique(places[:, 0], return_inverse=True)
    return Faces(names, points, scores, ids, rows.astype(np.int64), places[:, 1])


def _face(words: list[str]) -> tuple[str, list[float]]:
    name, row = words[0], [float(word) for word in words[1:]]
    is_outside = name.startswith("/") or ".." in name.split("/")
    if is_outside or len(row) != _POINT_NUMBERS + 1 or not all(abs(x) <= _LARGEST for x in row):
        raise ValueError
    return name, row


def check_points(path: Path, faces: Faces) -> str:
    """Return a line about the faces whose points are hardly those of a face, if there are any.

    Args:
        path: of the list of points.
        faces: read from it.

    Raises:
        DataError: they are at least half of all, as in a list with other columns, or a face cannot
            be aligned.
    """
    wrong = np.flatnonzero(is_no_face(faces.points)).tolist()
    counts = f"{len(wrong):,} of {len(faces.names):,} faces"
    try:
        if 2 * len(wrong) >= len(faces.names):
            face = wrong[0]
            raise DataError(f"its points are those of no face, as of {counts}")
        for face in wrong:
            estimate(faces.points[face], any_order=True)
    except DataError as error:
        raise DataError(
            f"{path}, {faces.names[face]!r:.80}: {error}; each line has the name of an image, x "
            "and y of five points, then the score, in InsightFace's release"
        ) from None
    if not wrong:
        return ""
    return (
        f"{path}: the points of {counts} are hardly those of a face, as of some in profile; they "
        "are aligned as the list says"
    )


def read_pairs(path: Path, template_ids: Ints) -> Pairs:
    """Read the pairs of templates.

    Args:
        path: a list; each line has two templates, and 1 if both show one person, otherwise 0.
        template_ids: all there are, ascending.

    Raises:
        DataError: the list is missing or has a wrong line, or pairs of one kind only.
    """
    rows = {str(template): row for row, template in enumerate(template_ids.tolist())}
    labels = {"0": 0, "1": 1}

    def pair(words: list[str]) -> tuple[int, int, int]:
        first, second, label = words
        return rows[first], rows[second], labels[label]

    numbers = array("i")
    for found in _read(path, pair, "two templates that have faces, and the label 0 or 1"):
        numbers.extend(found)
    first, second, label = np.array(numbers, np.int32).reshape(-1, 3).T
    same = label == 1
    if same.all() or not same.any():
        raise DataError(
            f"{path} has {len(same):,} pairs, {int(same.sum()):,} of one person; both kinds of "
            "pairs are needed"
        )
    return Pairs(first, second, same)


def read_subjects(path: Path, template_ids: Ints) -> Subjects:
    """Read a gallery or the probes.

    Args:
        path: a table with commas between, with or without a heading; a line per image, that begins
            with its template and its subject. A template may be there several times.
        template_ids: all that have faces, ascending.

    Raises:
        DataError: the table is missing, empty or has a wrong line; a template has two subjects, or
            no face.
    """
    subjects: dict[int, int] = {}
    known = set(template_ids.tolist())

    def image(words: list[str]) -> None:
        template, subject = (_integer(word.strip()) for word in words[:2])
        if template not in known or subjects.setdefault(template, subject) != subject:
            raise ValueError

    for _ in _read(path, image, "a template that has faces, its only subject, and others", ","):
        pass
    if not subjects:
        raise DataError(f"{path} has no templates; take it from InsightFace's release")
    templates, people = np.array(sorted(subjects.items()), np.int64).T
    return Subjects(np.searchsorted(template_ids, templates), people)


def _read(
    path: Path, parse: Callable[[list[str]], _Row], expected: str, separator: Optional[str] = None
) -> Iterator[_Row]:
    """Yield what ``parse`` returns for the words of each line that is not empty.

    It refuses a line by a ``ValueError`` or ``KeyError``. With a separator, the first line is a
    heading unless it begins with a number.
    """
    try:
        file = io.TextIOWrapper(open_regular(path), "utf-8-sig", "surrogateescape")
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; take it from InsightFace's release (with "
            "--protocol, the lists of the other protocol are not needed)"
        ) from None
    with file:
        for number, line in enumerate(file, 1):
            is_heading = number == 1 and separator and not line.lstrip()[:1].isdecimal()
            if is_heading or not line.strip():
                continue
            try:
                row = parse(line.split(separator))
            except (ValueError, KeyError):
                raise DataError(
                    f"{path}, line {number}: {line.strip()!r:.80} is not {expected}; take all "
                    "lists from one release"
                ) from None
            yield row


def _integer(word: str) -> int:
    if not (word.isascii() and word.isdecimal() and len(word) <= _MAX_DIGITS):
        raise ValueError
    return int(word)
