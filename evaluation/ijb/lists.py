"""The lists of IJB-B and IJB-C, in the form in which InsightFace distributes them.

A folder has the images in ``loose_crop`` and the lists in ``meta``, named after the set: a line per
face with its image, five points and the detector's score; a line per face with its template and its
media; the pairs of templates; and tables of the templates of galleries and probes. Whoever made
them is not the user: every line is checked, and the first wrong one is named.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from data.align.similarity import is_no_face
from runtime.errors import DataError
from runtime.files import open_regular

Ints = NDArray[np.int64]

IMAGES = "loose_crop"
GALLERIES = {"ijbb": ("gallery_S1", "gallery_S2"), "ijbc": ("gallery_G1", "gallery_G2")}
"""The words in the names of the two galleries, by how the names of a set's lists begin."""

# Columns of a face and of its media, after the name of the image.
_FACE = np.dtype([("points", float, (5, 2)), ("score", float)])
_MEDIA = np.dtype([("template", np.int64), ("media", np.int64)])
_PAIR = np.dtype([("first", np.int64), ("second", np.int64), ("label", np.int8)])
_SUBJECT = np.dtype([("template", np.int64), ("subject", np.int64)])
# Images have at most 2^20 pixels in a row; not a number is not smaller either.
_LARGEST = 1e9
# A byte beyond ASCII, as Python's "backslashreplace" writes it.
_ESCAPED = re.compile(r"\\x([89a-f][0-9a-f])")


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
            f"{folder / 'meta'} has to hold either {names}; give the folder IJBB or IJBC of "
            "InsightFace's release"
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
        DataError: a list is missing, empty, or has a wrong line, or they do not fit; or at least
            half of the points are those of no face, as in a list with other columns.
    """
    names: list[str] = []
    others: list[str] = []
    faces = _read(lists.points, _FACE, "an image, x and y of five points, and a score", names)
    media = _read(lists.media, _MEDIA, "an image, its template and its media", others)
    points, scores = faces["points"], faces["score"]
    if len(names) != len(others):
        raise _problem(lists.media, f"has {len(others):,} faces, {lists.points} {len(names):,}")
    for row, (name, other) in enumerate(zip(names, others), 1):
        if name != other:
            problem = f"has {other!r:.80} in place of {name!r:.80}, face {row:,}"
            raise _problem(lists.media, f"{problem} of {lists.points.name}")
    for name in names:
        if name.startswith("/") or ".." in name.split("/"):
            raise _problem(lists.points, f"names {name!r:.80}, which is not within {IMAGES}")
    largest = np.maximum(np.abs(points).max(axis=(1, 2)), np.abs(scores))
    for row in np.flatnonzero(~(largest <= _LARGEST))[:1]:
        raise _problem(
            lists.points, f"has a number of {names[row]!r:.80} that is too large or none"
        )
    is_wrong = is_no_face(points)
    if 2 * is_wrong.sum() >= len(names):
        problem = f"has points of no face for {names[is_wrong.argmax()]!r:.80}"
        problem += f", as for {is_wrong.sum():,} of {len(names):,} faces"
        raise _problem(lists.points, problem)
    ids, rows = np.unique(media["template"], return_inverse=True)
    return Faces(names, points, scores, ids, rows.astype(np.int64), media["media"])


def read_pairs(path: Path, template_ids: Ints) -> Pairs:
    """Read the pairs of templates.

    Args:
        path: a list; each line has two templates, and 1 if both show one person, otherwise 0.
        template_ids: all there are, ascending.

    Raises:
        DataError: the list is missing or has a wrong line, or pairs of one kind only.
    """
    table = _read(path, _PAIR, "two templates, and 1 for one person or 0")
    labels = np.unique(table["label"]).tolist()
    if labels != [0, 1]:
        raise _problem(path, f"has the labels {labels}; both 0 and 1 are needed, and no others")
    first, second = (
        _rows(path, template_ids, table[name]).astype(np.int32) for name in ("first", "second")
    )
    return Pairs(first, second, table["label"] == 1)


def read_subjects(path: Path, template_ids: Ints) -> Subjects:
    """Read a gallery or the probes.

    Args:
        path: a table with commas between, and a heading; a line per image, that begins with its
            template and its subject. A template may be there several times.
        template_ids: all that have faces, ascending.

    Raises:
        DataError: the table is missing, empty or has a wrong line; a template has two subjects, or
            no face.
    """
    layout: dict[str, Any] = {"delimiter": ",", "usecols": (0, 1), "skiprows": 1}
    expected = "a template, its subject, and others, after a heading"
    table = np.unique(_read(path, _SUBJECT, expected, **layout))
    templates, subjects = table["template"], table["subject"]
    for row in np.flatnonzero(np.diff(templates) == 0)[:1]:
        raise _problem(path, f"has two subjects for the template {templates[row]}")
    return Subjects(_rows(path, template_ids, templates), subjects)


def _rows(path: Path, template_ids: Ints, templates: Ints) -> Ints:
    """Return the row of each template."""
    rows = np.minimum(np.searchsorted(template_ids, templates), len(template_ids) - 1)
    for wrong in np.flatnonzero(template_ids[rows] != templates)[:1]:
        raise _problem(path, f"has the template {templates[wrong]}, which has no faces")
    return rows


def _read(
    path: Path,
    columns: np.dtype[Any],
    expected: str,
    names: Optional[list[str]] = None,
    **layout: Any,
) -> NDArray[Any]:
    """Return a row for each line that is not empty.

    Args:
        path: the list.
        columns: the numbers of a line.
        expected: what a line has, for messages.
        names: gets the first column, if that is a name.
        layout: for ``numpy.loadtxt``.
    """
    try:
        # NumPy looks characters of numbers up in a table that ends before those beyond Latin.
        with io.TextIOWrapper(open_regular(path), "ascii", "backslashreplace") as file:
            is_marked = file.buffer.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
            file.buffer.seek(len(codecs.BOM_UTF8) if is_marked else 0)
            with warnings.catch_warnings():
                # A table without rows, and a number that is no integer.
                warnings.simplefilter("error")
                lines = file if names is None else _numbers(file, names)
                return np.loadtxt(lines, columns, comments=None, ndmin=1, **layout)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror}; take it from InsightFace's release (with "
            "--protocol, the lists of the other protocol are not needed)"
        ) from None
    except (ValueError, Warning) as error:
        # The warning goes on with the object that it has read.
        reason = str(error).partition(': "')[0]
        raise _problem(path, f"has a line that is not {expected} ({reason:.200})") from None


def _numbers(file: Iterable[str], names: list[str]) -> Iterator[str]:
    """Yield the lines without their first column, which is a name and goes to ``names``.

    An array of objects that ``numpy.loadtxt`` has not finished can end the process.
    """
    for line in file:
        name, *rest = line.split(None, 1) or [""]
        if rest:
            names.append(_unescaped(name))
            yield rest[0]
        elif name:
            raise ValueError(f"{name!r:.80} stands alone")


def _unescaped(name: str) -> str:
    """Return a name with the bytes that ``_read`` has escaped."""
    text = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)
    return text.encode("latin-1").decode("utf-8", "surrogateescape")


def _problem(path: Path, problem: str) -> DataError:
    return DataError(f"{path} {problem}; take all lists from one release of InsightFace")
