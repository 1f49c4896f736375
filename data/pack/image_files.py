"""Image files on their way into a set: read, checked, and brought to one size if asked for.

A set has images of one size, which ``property`` states. JPEGs and PNGs that have it go in byte for
byte: decoding and encoding once more would blur them. Images of another size are a mistake to be
named, unless the user wants them resized. A face must keep its proportions, so an image of another
shape is cropped, or refused; it is never stretched.

Files of other formats are encoded anew, since readers of sets know JPEG and PNG. So are images that
a camera stored on their side: not every reader turns them upright.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Union

import cv2

from data.images.decoding import Image, decode_file
from data.images.headers import encoded_size, is_copied
from data.records.recordio import BrokenRecordError
from data.worker_threads import map_in_order, say, track
from runtime.errors import DataError

JPEG_QUALITY = 95
"""Of images that are encoded anew: hardly a visible loss, and a third of what 100 would take."""


class EncodedImage(NamedTuple):
    """A file's name, what goes into the set, and its height and width."""

    path: str
    payload: bytes
    size: tuple[int, int]


@dataclass(frozen=True)
class Preparation:
    """What is done to every file.

    Attributes:
        size: height and width to bring the images to; None leaves them as they are.
        crop: whether images of another shape than ``size`` are cropped to it, at their center.
        check: whether every image is decoded, and all broken ones are named.
        lossless: whether images that are encoded anew become PNGs instead of JPEGs.
    """

    size: tuple[int, int] | None = None
    crop: bool = False
    check: bool = False
    lossless: bool = False

    def read(self, path: str) -> EncodedImage:
        """Read and prepare a file.

        Raises:
            DataError: it cannot be read or decoded, or has another shape and shall not be cropped.
        """
        try:
            with open(path, "rb", buffering=0) as file:
                return self._prepare(path, file.readall())
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from None
        except BrokenRecordError as error:
            raise DataError(f"{path}: {error}; remove or replace it") from None

    def _prepare(self, path: str, payload: bytes) -> EncodedImage:
        copied = is_copied(payload)
        size = encoded_size(payload) if copied else None
        image = None
        if size is None:
            image = decode_file(payload)
            size = image.shape[0], image.shape[1]
        wanted = self.size or size
        if not self.crop and not _same_shape(size, wanted):
            raise DataError(
                f"{path} has {size[0]} x {size[1]} pixels, which is another shape than "
                f"{wanted[0]} x {wanted[1]}; --crop takes the center of such images"
            )
        if copied and size == wanted:
            if self.check and image is None:
                decode_file(payload)
            return EncodedImage(path, payload, size)
        if image is None:
            image = decode_file(payload)
        if image.shape[:2] != wanted:
            image = fit(image, wanted)
        return EncodedImage(path, _encode(image, self.lossless), wanted)


def fit(image: Image, size: tuple[int, int]) -> Image:
    """Crop an image to the shape of ``size``, as large as possible, at its center; resize that.

    Args:
        image: uint8 ``[h, w, 3]``.
        size: height and width of the result.
    """
    (height, width), (new_height, new_width) = image.shape[:2], size
    scale = max(new_height / height, new_width / width)
    rows, columns = min(height, round(new_height / scale)), min(width, round(new_width / scale))
    top, left = (height - rows) // 2, (width - columns) // 2
    # Averages areas where it shrinks, so that no fine texture turns into a coarse one.
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    cropped = image[top : top + rows, left : left + columns]
    resized: Image = cv2.resize(cropped, (new_width, new_height), interpolation=method)
    return resized


def usable_images(
    paths: Sequence[str], preparation: Preparation, workers: int, what: str
) -> Iterator[EncodedImage]:
    """Yield the images of files, in order; they are read and prepared by threads.

    With ``preparation.check``, no more images come after a bad one, but all files are looked at,
    and each bad one is named on standard error.

    Args:
        paths: the files.
        preparation: what is done to them.
        workers: the number of threads.
        what: for the progress bar.

    Raises:
        DataError: an image is broken, or of another size than the first.
    """
    size = None
    bad = 0
    with map_in_order(partial(_try_to_read, preparation), paths, workers) as results:
        for result in track(results, len(paths), what):
            if isinstance(result, EncodedImage):
                size = size or result.size
                result = _of_size(result, size)
            if isinstance(result, DataError):
                if not preparation.check:
                    raise result
                say(f"bad: {result}")
                bad += 1
            elif not bad:
                yield result
    if bad:
        raise DataError(
            f"{bad:,} of {len(paths):,} images cannot be used, the lines above name them; remove "
            "or replace them (nothing was written)"
        )


def _try_to_read(preparation: Preparation, path: str) -> Union[EncodedImage, DataError]:
    """Hand an error over as a result: one bad file shall not hide those behind it."""
    try:
        return preparation.read(path)
    except DataError as error:
        return error


def _of_size(image: EncodedImage, size: tuple[int, int]) -> Union[EncodedImage, DataError]:
    if image.size == size:
        return image
    return DataError(
        f"{image.path} has {image.size[0]} x {image.size[1]} pixels, the images before it "
        f"{size[0]} x {size[1]}; align all faces to one size first, or bring them to one with "
        "--resize"
    )


def _same_shape(size: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether one becomes the other by scaling, up to the rounding of a side to whole pixels."""
    scaled = other[1] * size[0] / size[1]
    return abs(scaled - other[0]) <= 1


def _encode(image: Image, lossless: bool) -> bytes:
    bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    options = [] if lossless else [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    done, encoded = cv2.imencode(".png" if lossless else ".jpg", bgr, options)
    assert done
    payload: bytes = encoded.tobytes()
    return payload
