"""The lists of IJB-B and IJB-C, in the form in which InsightFace distributes them.

A folder has the images in ``loose_crop`` and the lists in ``meta``, named after the set: a line per
face with its image, five points and the detector's score; a line per face with its template and its
media; the pairs of templates; and tables of the templates of galleries and probes. Whoever made
them is not the user: every line is checked, and the first wrong one is named. IJB-C's 15,658,489
pairs are read in blocks.
"""

from __future__ import annotations

import io
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Optional, TextIO

import numpy as np
from numpy.typing import NDArray

from data.align.similarity import estimate, is_no_face
from runtime.errors import DataError
from runtime.files import open_regular

Ints = NDArray[np.int64]

IMAGES = "loose_crop"
GALLERIES = {"ijbb": ("gallery_S1", "gallery_S2"), "ijbc": ("gallery_G1", "gallery_G2")}
"""The words in the names of the two galleries, by how the names of a set's lists begin."""

_POINT_NUMBERS = 10
# At most 18 digits fit into 64 bits.
_MAX_DIGITS = 18
_DIGITS_AND_SPACE = b"0123456789 \t\n"
_BLOCK_BYTES = 4 << 20
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
    names, points, scores = _read_points(lists.points)
    templates: list[int] = []
    media: list[int] = []
    for number, line in _lines(lists.media):
        words = line.split()
        if len(words) != 3 or not all(map(_is_number, words[1:])):
            raise _wrong(lists.media, number, line, "the name of an image, a template and a media")
        if len(templates) < len(names) and words[0] != names[len(templates)]:
            raise DataError(
                f"{lists.media}, line {number}: {words[0]!r:.80} stands where {lists.points} has "
                f"{names[len(templates)]!r:.80}; take both lists from one release"
            )
        templates.append(int(words[1]))
        media.append(int(words[2]))
    if len(templates) != len(names):
        raise DataError(
            f"{lists.media} has {len(templates):,} faces, {lists.points} {len(names):,}; take both "
            "lists from one release, and download what is cut off again"
        )
    ids, rows = np.unique(np.array(templates, np.int64), return_inverse=True)
    return Faces(names, points, scores, ids, rows.astype(np.int64), np.array(media, np.int64))


def _read_points(path: Path) -> tuple[list[str], NDArray[np.float64], NDArray[np.float64]]:
    names: list[str] = []
    numbers = array("d")
    for number, line in _lines(path):
        words = line.split()
        try:
            row = [float(word) for word in words[1:]]
        except ValueError:
            row = []
        is_outside = words[0].startswith("/") or ".." in words[0].split("/")
        are_points = len(row) == _POINT_NUMBERS + 1 and all(abs(x) <= _LARGEST for x in row)
        if is_outside or not are_points:
            said = f"the name of an image within {IMAGES}, x and y of five points, and a score"
            raise _wrong(path, number, line, said)
        names.append(words[0])
        numbers.extend(row)
    if not names:
        raise DataError(f"{path} is empty; take it from InsightFace's release")
    table = np.array(numbers).reshape(len(names), -1)
    return names, table[:, :_POINT_NUMBERS].reshape(-1, 5, 2), table[:, _POINT_NUMBERS]


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
    columns = [np.empty((3, 0), np.int32)]
    number = 1
    with _open_text(path) as text:
        while lines := text.readlines(_BLOCK_BYTES):
            block = _pairs_of(lines, template_ids)
            if block is None:
                wrong = (n for n, one in enumerate(lines) if _pairs_of([one], template_ids) is None)
                place = next(wrong)
                said = "two templates that have faces, and the label 0 or 1"
                raise _wrong(path, number + place, lines[place], said)
            columns.append(block)
            number += len(lines)
    first, second, labels = np.concatenate(columns, axis=1)
    same = labels == 1
    if same.all() or not same.any():
        raise DataError(
            f"{path} has {len(same):,} pairs, {int(same.sum()):,} of one person; both kinds of "
            "pairs are needed"
        )
    return Pairs(first, second, same)


def _pairs_of(lines: list[str], template_ids: Ints) -> Optional[NDArray[np.int32]]:
    """Return the rows of both templates and the label of each line [3, n]; None if one is wrong."""
    content = "".join(lines).encode("ascii", "replace")
    if content.translate(None, _DIGITS_AND_SPACE):
        return None
    if not content.strip():
        return np.empty((3, 0), np.int32)
    try:
        table = np.loadtxt(lines, np.int64, comments=None, ndmin=2)
    # Another number of words in a line, or a number that is too large.
    except (ValueError, OverflowError):
        return None
    if table.shape[1] != 3:
        return None
    rows = np.searchsorted(template_ids, table[:, :2])
    are_known = template_ids[np.minimum(rows, len(template_ids) - 1)] == table[:, :2]
    if not are_known.all() or (table[:, 2] > 1).any():
        return None
    return np.column_stack([rows, table[:, 2]]).T.astype(np.int32)


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
    for number, line in _lines(path):
        words = [word.strip() for word in line.split(",")[:2]]
        if len(words) < 2 or not all(map(_is_number, words)):
            if number == 1:
                continue
            raise _wrong(path, number, line, "a template, a subject, and others")
        template, subject = map(int, words)
        if subjects.setdefault(template, subject) != subject:
            said = f"of the subject {subjects[template]}, as the template in lines before"
            raise _wrong(path, number, line, said)
        if template not in known:
            raise _wrong(path, number, line, "of a template that has faces")
    if not subjects:
        raise DataError(f"{path} has no templates; take it from InsightFace's release")
    templates, people = np.array(sorted(subjects.items()), np.int64).T
    return Subjects(np.searchsorted(template_ids, templates), people)


def _open_text(path: Path) -> TextIO:
    try:
        return io.TextIOWrapper(open_regular(path), "utf-8-sig", "surrogateescape")
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; take it from InsightFace's release (with "
            "--protocol, the lists of the other protocol are not needed)"
        ) from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty, with their numbers."""
    with _open_text(path) as text:
        for number, line in enumerate(text, 1):
            if line.strip():
                yield number, line


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= _MAX_DIGITS


def _wrong(path: Path, number: int, line: str, expected: str) -> DataError:
    return DataError(
        f"{path}, line {number}: {line.strip()!r:.80} is not {expected}; take all lists from one "
        "release"
    )
