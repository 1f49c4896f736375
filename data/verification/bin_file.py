"""Verification sets: pairs of faces and the answers, in InsightFace's ``.bin`` format.

Such a file is a pickle, and Python's reader of pickles runs any code that a stranger has put into
one. It is read by ``data.plain_pickle`` instead, which makes lists, bytes and numbers only. Others
write such files with lists, dictionaries, arrays and scalars of NumPy; all of them are read.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Union

import cv2
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from data import plain_pickle
from data.image_interface import EncodedImages
from data.plain_pickle import UnsafePickleError
from data.records.recordio import BrokenRecordError, Payload
from runtime.errors import DataError
from runtime.files import as_data_error, read_file, write_atomically

# A hundred times LFW; the file is read as a whole.
_MAX_BYTES = 1 << 33
_TEXT = (str, bytes)
# As InsightFace's programs call the two parts.
_KEYS = ("bins", "issame_list")


@dataclass(frozen=True)
class VerificationSet(EncodedImages):
    """Pairs of encoded images: images 2i and 2i + 1 are pair i."""

    path: Path
    images: list[bytes]
    """2 P encoded images."""
    same: NDArray[np.bool_]
    """``[P]``: whether the images of a pair show the same identity."""
    num_classes: int = 0
    """Not known."""

    @property
    def name(self) -> str:
        """The file's name without its ending, such as ``lfw``."""
        return self.path.stem

    def __len__(self) -> int:
        """Return the number of images, twice the number of pairs."""
        return len(self.images)

    @override
    def image(self, index: int) -> tuple[Payload, int]:
        """Return an encoded image, and -1 for its class, which is not known."""
        return self.images[index], -1

    @override
    def where(self, index: int) -> str:
        return f"{self.path}: image {index}"

    @cached_property
    def firsts(self) -> NDArray[np.int64]:
        """``[2 P]``: for each image, the number of the first one of the same bytes."""
        found: dict[bytes, int] = {}
        # A file may use one object many times: compare its bytes once.
        of_object: dict[int, int] = {}
        for number, image in enumerate(self.images):
            if id(image) not in of_object:
                of_object[id(image)] = found.setdefault(image, number)
        return np.array([of_object[id(image)] for image in self.images])

    def pixels(self, number: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        """Return an image, scaled to ``size`` if it has another: uint8 ``[3, height, width]``, RGB.

        Raises:
            DataError: the image is broken.
        """
        try:
            image, _ = self.decoded(number)
        except BrokenRecordError as error:
            raise DataError(f"{error}; copy it again") from None
        if image.shape[:2] != size:
            # As InsightFace's verification.py does; averaged areas would score otherwise.
            image = np.asarray(cv2.resize(image, size[::-1], interpolation=cv2.INTER_CUBIC))
        return np.ascontiguousarray(image.transpose(2, 0, 1))


def read_bin(path: Union[str, os.PathLike[str]]) -> VerificationSet:
    """Read a verification set without running code that its pickle may contain.

    Raises:
        DataError: no such file, or it holds anything else than encoded images and booleans.
    """
    path = Path(path)
    with as_data_error(f"{path} cannot be read", "name a verification set (.bin)"):
        content = read_file(path, _MAX_BYTES)
    try:
        images, answers = _unpack(plain_pickle.load(content))
    except UnsafePickleError as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{path} is no verification set ({reason}); copy it again, or make one with "
            "python -m data.pack --pairs"
        ) from None
    if not images or len(images) != 2 * len(answers):
        raise DataError(
            f"{path} holds {len(images)} images for {len(answers)} pairs, not two for each; copy "
            "it again"
        )
    return VerificationSet(path, images, answers)


def write_bin(
    path: Union[str, os.PathLike[str]], encoded_images: Sequence[bytes], same: Sequence[bool]
) -> None:
    """Write a verification set; it appears under its name only when it is complete.

    ``encoded_images`` are two JPEG or PNG images for each answer of ``same``.
    """
    assert len(encoded_images) == 2 * len(same)
    content = (list(encoded_images), [bool(answer) for answer in same])
    write_atomically(Path(path), pickle.dumps(content, protocol=4))


def _unpack(content: Any) -> tuple[list[bytes], NDArray[np.bool_]]:
    if isinstance(content, dict):
        named = {os.fsdecode(key): part for key, part in content.items() if isinstance(key, _TEXT)}
        content = [named[key] for key in _KEYS if key in named]
    if not (isinstance(content, (list, tuple)) and len(content) == 2):
        raise UnsafePickleError("it holds no pair of images and answers")
    images, same = content
    # Answers that are an array of bytes have become bytes.
    for part, kinds in ((images, (list, tuple)), (same, (list, tuple, bytes))):
        if not isinstance(part, kinds):
            raise UnsafePickleError(f"a value of type {type(part).__name__} instead of a list")
    for image in images:
        if not isinstance(image, bytes):
            raise UnsafePickleError(f"an image is a {type(image).__name__}")
    for answer in same:
        if not isinstance(answer, (int, float)) or answer not in (0, 1):
            raise UnsafePickleError(f"an answer is a {type(answer).__name__} that is no boolean")
    return list(images), np.array(list(same), np.bool_)
