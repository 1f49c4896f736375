"""Which pairs of images a verification set asks about.

LFW publishes its 6,000 pairs as a text file; for other faces, pairs of held-out identities are
drawn. Both are ordered by folds, because the verification protocol cuts a set into ten consecutive
parts, each of which must hold as many same as different pairs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from data.decoding import IMAGE_ENDINGS
from data.text_list import splits
from runtime.errors import ConfigError, DataError
from runtime.files import read_lines

_LONGEST_NAME = 200
_KIND = "a list of pairs"
_LAYOUT = "'name i j' nor 'name1 i name2 j' (with tabs or commas between if a name has spaces)"


_Image = TypeVar("_Image")
Pair = tuple[_Image, _Image, bool]
"""Two images, and whether they show the same identity."""
# An image as (number of the identity, number among its images).
_Drawn = Pair[tuple[int, int]]


def read_pairs(path: Path, folder: Path) -> list[Pair[Path]]:
    """Read pairs in LFW's format.

    The first line holds ``folds, pairs`` (or ``pairs`` alone): each fold has that many pairs of the
    same person and as many of different ones. Then ``name i j`` is a pair of the same person and
    ``name1 i name2 j`` one of two, where i is the number in ``name/name_000i.jpg``. Between words
    are tabs, commas, semicolons or spaces; a line that begins with # is a comment.

    Raises:
        DataError: a line has another form, an image is missing, or there are too few lines.
    """
    lines = [
        (number, line)
        for number, line in enumerate(read_lines(path, _KIND, errors="surrogateescape"), 1)
        if line.strip() and not line.startswith("#")
    ]
    number, line = lines[0] if lines else (1, "")
    header = next(filter(_is_header, splits(line)), None)
    if header is None:
        raise DataError(
            f"{path}, line {number}: {line.strip()!r:.60} instead of the numbers of folds and "
            "pairs, which come first in LFW's format"
        )
    pairs = [_parse_pair(line, folder, f"{path}, line {number}") for number, line in lines[1:]]
    *folds, size = map(int, header)
    announced = 2 * int(np.prod([*folds, size]))
    if len(pairs) != announced or not pairs:
        raise DataError(
            f"{path} announces {announced} pairs in its first line and holds {len(pairs)}; copy it "
            "again"
        )
    for number, start in enumerate(range(0, len(pairs), 2 * size), 1):
        same = sum(is_same for _, _, is_same in pairs[start : start + 2 * size])
        if same != size:
            raise DataError(
                f"{path}: of the {2 * size} pairs of fold {number}, {same} instead of {size} are of"
                " one person; sort them by folds, or correct the first line"
            )
    return pairs


def draw_pairs(
    identities: Sequence[Sequence[_Image]], *, count: int, folds: int, seed: int
) -> list[Pair[_Image]]:
    """Draw distinct pairs of images, half of the same identity and half of different ones.

    Same pairs are spread evenly over the identities, as far as their images allow: otherwise the
    identity with most images would determine the result.

    Args:
        identities: the images of each.
        count: the number of pairs, a multiple of ``2 * folds``.
        folds: the number of folds; each gets as many same as different pairs.
        seed: of the draw.

    Raises:
        ConfigError: ``count`` does not fill the folds, or there are fewer distinct pairs.
    """
    if count <= 0 or folds <= 0 or count % (2 * folds):
        raise ConfigError(
            f"{count} pairs do not fill {folds} folds with equally many same and different pairs; "
            f"choose a multiple of {2 * folds}"
        )
    image_counts = [len(images) for images in identities]
    rng = np.random.default_rng(seed)
    same = _draw_same(image_counts, count // 2, rng)
    different = _draw_different(image_counts, count // 2, rng)
    halves = np.split(np.arange(count // 2), folds)
    return [
        (identities[one][first], identities[other][second], is_same)
        for fold in halves
        for kind in (same, different)
        for (one, first), (other, second), is_same in (kind[number] for number in fold)
    ]


def _is_header(words: list[str]) -> bool:
    return 1 <= len(words) <= 2 and all(map(_is_count, words))


def _parse_pair(line: str, folder: Path, where: str) -> Pair[Path]:
    for words in splits(line):
        same = len(words) == 3
        full = [words[0], words[1], words[0], words[2]] if same else words
        if len(full) == 4 and all(map(_is_count, full[1::2])) and all(map(_is_name, full[::2])):
            first = _image_of(folder, full[0], int(full[1]), where)
            return first, _image_of(folder, full[2], int(full[3]), where), same
    raise DataError(f"{where}: {' '.join(line.split())!r:.80} is neither {_LAYOUT}")


def _is_count(word: str) -> bool:
    return word.isdecimal() and len(word) < 10


def _is_name(word: str) -> bool:
    """Return True if a name neither leads out of the folder nor is longer than a file's may be."""
    return "/" not in word and word[:1] not in ("", ".") and len(os.fsencode(word)) <= _LONGEST_NAME


def _image_of(folder: Path, name: str, number: int, where: str) -> Path:
    stem = folder / name / f"{name}_{number:04d}"
    for suffix in (*IMAGE_ENDINGS, *map(str.upper, IMAGE_ENDINGS), ""):
        path = stem.with_name(stem.name + suffix)
        if os.path.isfile(path):
            return path
    raise DataError(f"{where}: there is no image {stem}{IMAGE_ENDINGS[0]}; check the folder")


def _draw_same(image_counts: Sequence[int], count: int, rng: np.random.Generator) -> list[_Drawn]:
    available = np.array([images * (images - 1) // 2 for images in image_counts], np.int64)
    if available.sum() < count:
        raise ConfigError(
            f"the held-out identities give only {available.sum()} pairs of the same identity, "
            f"fewer than {count}; choose fewer --holdout-pairs or a smaller --holdout-every"
        )
    pairs = []
    for identity, quota in enumerate(_divide(available, count, rng)):
        for number in rng.choice(available[identity], quota, replace=False):
            i, j = _nth_combination(int(number))
            pairs.append(((identity, i), (identity, j), True))
    return [pairs[i] for i in rng.permutation(len(pairs))]


def _divide(
    available: NDArray[np.int64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Divide ``count`` as evenly as ``available`` allows; the remainder goes to random shares."""
    shares = np.zeros_like(available)
    while missing := count - int(shares.sum()):
        growing = rng.permutation(np.flatnonzero(shares < available))
        step = max(1, missing // len(growing))
        chosen = growing[: missing // step]
        shares[chosen] = np.minimum(shares[chosen] + step, available[chosen])
    return shares


def _nth_combination(number: int) -> tuple[int, int]:
    """Return the pair (i, j), i < j, with j (j - 1) / 2 + i = number."""
    j = (1 + int(np.sqrt(8 * number + 1))) // 2
    return number - j * (j - 1) // 2, j


def _draw_different(
    image_counts: Sequence[int], count: int, rng: np.random.Generator
) -> list[_Drawn]:
    sizes = np.array(image_counts, np.int64)
    available = (int(sizes.sum()) ** 2 - int((sizes**2).sum())) // 2
    if available < count:
        raise ConfigError(
            f"the held-out identities give only {available} pairs of different identities, fewer "
            f"than {count}; choose fewer --holdout-pairs or a smaller --holdout-every"
        )
    drawn: dict[_Drawn, None] = {}
    while len(drawn) < count:
        one, other = sorted(rng.choice(len(sizes), 2, replace=False).tolist())
        first, second = rng.integers(sizes[[one, other]]).tolist()
        drawn[(one, first), (other, second), False] = None
    return list(drawn)
