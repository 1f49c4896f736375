"""Image files that go into a set: read, checked, and resized if the user asks for it.

All images of a set have one size, which ``property`` states. JPEGs and PNGs of this size are copied
byte for byte, because decoding and encoding them again would blur them. Images of another size are
an error, unless the user wants them resized. A face must keep its proportions: an image of another
shape is cropped or refused, never stretched.

Files of other formats are encoded as JPEG or PNG, which every reader of sets knows. So are images
that a camera stored on their side, because not every reader turns them upright.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional, Union

import cv2

from data.align.points import PointsFile
from data.decoding import Image, decode_file, encode
from data.headers import encoded_size, is_copied
from data.records.recordio import BrokenRecordError
from data.worker_threads import map_in_order, say, track
from runtime.errors import DataError
from runtime.files import as_data_error, read_file


class EncodedImage(NamedTuple):
    """The path of a file, the bytes that go into the set, and the image's height and width."""

    path: str
    payload: bytes
    size: tuple[int, int]


@dataclass(frozen=True)
class ImageReader:
    """Reads image files and prepares them for a set.

    Attributes:
        size: height and width to resize images to; None leaves them as they are.
        crop: whether images of another shape than ``size`` are cropped to it, at their center.
        check: whether every image is decoded, and all broken ones are named.
        lossless: whether images that are encoded become PNGs instead of JPEGs.
        workers: the number of threads.
        points: the faces are cut out by these, in place of ``size`` and ``crop``.
    """

    size: Optional[tuple[int, int]] = None
    crop: bool = False
    check: bool = False
    lossless: bool = False
    workers: int = 1
    points: Optional[PointsFile] = None

    def read_all(self, paths: Sequence[str], activity: str) -> Iterator[EncodedImage]:
        """Yield the images of files in the order of the paths; threads read and prepare them.

        With ``check``, no image follows a bad one, but all files are read, and each bad one is
        named on standard error. The progress bar shows ``activity``.

        Raises:
            DataError: an image cannot be used, or has another size than the first.
        """
        size = None
        bad = 0
        with map_in_order(self._read, paths, self.workers) as results:
            for result in track(results, len(paths), activity):
                if isinstance(result, EncodedImage):
                    size = size or result.size
                    if result.size == size:
                        if not bad:
                            yield result
                        continue
                    result = DataError(
                        "{} has {} x {} pixels, the images before it {} x {}; align all faces to "
                        "one size first, or bring them to one with --resize".format(
                            result.path, *result.size, *size
                        )
                    )
                if not self.check:
                    raise result
                say(f"bad: {result}")
                bad += 1
        if bad:
            raise DataError(
                f"{bad:,} of {len(paths):,} images cannot be used, the lines above name them; "
                "remove or replace them (nothing was written)"
            )

    def _read(self, path: str) -> Union[EncodedImage, DataError]:
        """Return an error as a result, so that one bad file does not hide those that follow."""
        try:
            with as_data_error(f"{path} cannot be read"):
                content = read_file(path)
            return self._prepare(path, content)
        except BrokenRecordError as error:
            return DataError(f"{path}: {error}; remove or replace it")
        except DataError as error:
            return error

    def _prepare(self, path: str, payload: bytes) -> EncodedImage:
        if self.points is not None:
            face = self.points.align(path, decode_file(payload))
            return EncodedImage(path, encode(face, self.lossless), (face.shape[0], face.shape[1]))
        copied = is_copied(payload)
        size = encoded_size(payload) if copied and not self.check else None
        image = None
        if size is None:
            image = decode_file(payload)
            size = image.shape[0], image.shape[1]
        wanted = self.size or size
        # Another shape differs by more than the rounding of a side to whole pixels.
        if not self.crop and abs(wanted[1] * size[0] / size[1] - wanted[0]) > 1:
            raise DataError(
                f"{path} has {size[0]} x {size[1]} pixels, which is another shape than "
                f"{wanted[0]} x {wanted[1]}; --crop takes the center of such images"
            )
        if copied and size == wanted:
            return EncodedImage(path, payload, size)
        if image is None:
            image = decode_file(payload)
        if size != wanted:
            image = fit(image, wanted)
        return EncodedImage(path, encode(image, self.lossless), wanted)


def fit(image: Image, size: tuple[int, int]) -> Image:
    """Resize the largest part of an image that has the shape of ``size`` and the same center.

    The image is uint8 ``[h, w, 3]``; ``size`` is height and width of the result.
    """
    (height, width), (new_height, new_width) = image.shape[:2], size
    scale = max(new_height / height, new_width / width)
    wanted = max(1, round(new_height / scale)), max(1, round(new_width / scale))
    rows, columns = min(height, wanted[0]), min(width, wanted[1])
    top, left = (height - rows) // 2, (width - columns) // 2
    # Shrinking averages areas, so that no fine texture turns into a coarse one.
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    cropped = image[top : top + rows, left : left + columns]
    resized: Image = cv2.resize(cropped, (new_width, new_height), interpolation=method)
    return resized
