"""Verification sets: pairs of faces and the answers, in InsightFace's ``.bin`` format.

Such a file is a pickle, and a pickle from a stranger runs code when it is loaded plainly. Here an
unpickler builds lists, bytes and booleans and nothing else: of NumPy's classes, which some files
name, it only collects the raw bytes.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from data.images import decode_rgb
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
        images, same = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
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


class _RawArray:
    """Collects the state of a pickled NumPy array."""

    def __init__(self, *_: Any) -> None:
        self.content = b""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        dtype, content = state[2], state[4]
        if not (
            isinstance(dtype, _RawDtype) and dtype.code == b"u1" and isinstance(content, bytes)
        ):
            raise pickle.UnpicklingError("an array of something else than bytes")
        self.content = content


class _RawDtype:
    """Collects the name of a pickled NumPy type."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code if isinstance(code, bytes) else str(code).encode()

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and alignment: single bytes have none."""


def _raw_scalar(dtype: Any, content: Any) -> bool:
    if not (isinstance(dtype, _RawDtype) and dtype.code == b"b1" and isinstance(content, bytes)):
        raise pickle.UnpicklingError("a scalar of another type than bool")
    return content != b"\0"


def _raw_buffer(content: Any, dtype: Any, *_: Any) -> _RawArray:
    array = _RawArray()
    array.__setstate__((1, (), dtype, False, bytes(memoryview(content))))
    return array


def _latin1(text: Any, encoding: Any) -> bytes:
    """Rebuild bytes as protocol 2 stores them."""
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError(f"text in the encoding {encoding!r}")
    return str(text).encode("latin1")


class _Subtype:
    """Stands for ``numpy.ndarray``, which is named as an argument only."""


_PLAIN: dict[tuple[str, str], Callable[..., Any]] = {
    ("_codecs", "encode"): _latin1,
    ("numpy", "ndarray"): _Subtype,
    ("numpy", "dtype"): _RawDtype,
}
for _core in ("numpy.core", "numpy._core"):
    _PLAIN[f"{_core}.multiarray", "_reconstruct"] = _RawArray
    _PLAIN[f"{_core}.multiarray", "scalar"] = _raw_scalar
    _PLAIN[f"{_core}.numeric", "_frombuffer"] = _raw_buffer


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return our own stand-in for the few names that verification sets need."""
        if (module, name) not in _PLAIN:
            raise pickle.UnpicklingError(f"it wants to run {module}.{name}")
        return _PLAIN[module, name]


def _as_bytes(image: Any) -> bytes:
    if isinstance(image, _RawArray):
        return image.content
    if not isinstance(image, (bytes, bytearray)):
        raise pickle.UnpicklingError(f"an image is a {type(image).__name__}")
    return bytes(image)


def _as_bool(answer: Any) -> bool:
    if not isinstance(answer, (bool, int)) or answer not in (0, 1):
        raise pickle.UnpicklingError(f"an answer is {answer!r:.40}, not a boolean")
    return bool(answer)
