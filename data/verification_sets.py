"""Verification sets: pairs of faces and the answers, in InsightFace's ``.bin`` format.

Such a file is a pickle, and a pickle from a stranger runs code when it is loaded plainly: see
``data.plain_pickle``.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from data import plain_pickle
from data.images import decode_rgb
from data.plain_pickle import RawArray
from data.recordio import BrokenRecordError
from data.records import write_atomically
from runtime.errors import DataError


@dataclass(frozen=True)
class VerificationSet:
    """Pairs of encoded images: images 2i and 2i + 1 are pair i."""

    path: Path
    images: list[bytes]
    """2 P encoded images."""
    same: NDArray[np.bool_]
    """``[P]``: whether the images of a pair show the same identity."""

    @property
    def name(self) -> str:
        """The file's name without its ending, such as ``lfw``."""
        return self.path.stem

    def __len__(self) -> int:
        """Return the number of images, twice the number of pairs."""
        return len(self.images)

    def decode(self, start: int, stop: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        """Decode the images ``start … stop - 1``, scaled to ``size`` where theirs is another.

        Args:
            start: the first image.
            stop: one past the last.
            size: height and width.

        Returns:
            uint8 ``[stop - start, 3, height, width]``, RGB.

        Raises:
            DataError: an image is broken.
        """
        height, width = size
        batch = np.empty((stop - start, 3, height, width), np.uint8)
        for number, row in enumerate(batch, start):
            try:
                image = decode_rgb(self.images[number])
            except BrokenRecordError as error:
                raise DataError(f"{self.path}: image {number}: {error}; copy it again") from None
            if image.shape[:2] != size:
                image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
            row[:] = image.transpose(2, 0, 1)
        return batch


def read_bin(path: str | os.PathLike[str]) -> VerificationSet:
    """Read a verification set without running what its pickle may carry.

    Raises:
        DataError: no such file, or anything else in it than encoded images and booleans.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    try:
        images, same = plain_pickle.loads(content)
        images = [_as_bytes(image) for image in images]
        answers = np.array([_as_bool(answer) for answer in same], np.bool_)
    except Exception as error:
        # A damaged pickle may raise anything at all; for the user it is one and the same mistake.
        raise DataError(
            f"{path} is no verification set ({type(error).__name__}: {error}); copy it again, or "
            "make one with python -m data.pack --pairs"
        ) from None
    if not images or len(images) != 2 * len(answers):
        raise DataError(
            f"{path} holds {len(images)} images for {len(answers)} pairs, not two for each; copy "
            "it again"
        )
    return VerificationSet(path, images, answers)


def write_bin(
    path: str | os.PathLike[str], encoded_images: Sequence[bytes], same: Sequence[bool]
) -> None:
    """Write a verification set; it appears under its name only when it is complete.

    Args:
        path: the file.
        encoded_images: two JPEG or PNG images for each pair.
        same: whether the two show the same identity.
    """
    assert len(encoded_images) == 2 * len(same)
    content = (list(encoded_images), [bool(answer) for answer in same])
    write_atomically(Path(path), pickle.dumps(content, protocol=4))


def _as_bytes(image: Any) -> bytes:
    if isinstance(image, RawArray):
        return image.content
    if not isinstance(image, (bytes, bytearray)):
        raise pickle.UnpicklingError(f"an image is a {type(image).__name__}")
    return bytes(image)


def _as_bool(answer: Any) -> bool:
    if not isinstance(answer, (bool, int)) or answer not in (0, 1):
        raise pickle.UnpicklingError(f"an answer is {answer!r:.40}, not a boolean")
    return bool(answer)
