"""Where the images of a record file are: their offsets and keys.

Both come from ``index_file``, and are cached in a file beside the ``.rec``: keys only where they
are not consecutive.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from data.records.index_cache import Arrays, cached_arrays
from data.records.index_file import MAX_KEY, read_keys
from data.records.recordio import FLOAT32_EXACT, BrokenRecordError, RecordFile
from runtime.errors import DataError


class RecordIndex:
    """Offsets and keys of a record file's images.

    Attributes:
        offsets: of the images' records in bytes, int64 ``[images]``.
        first_key: the smallest key of an image.
        is_consecutive: whether the keys of the images have no gaps.
        identity_offsets: of the identity records, int64 ``[identities]``; empty in a flat set.
    """

    def __init__(self, path: Path, file: RecordFile) -> None:
        """Read the index of an open ``.rec`` file.

        Raises:
            DataError: the index, or the file's first record, cannot be right.
        """
        sources = (path, path.with_suffix(".idx"))
        arrays = cached_arrays(
            path.with_suffix(".idx.cache"), sources, lambda: _build(path, file), _fits_together
        )
        self.offsets: NDArray[np.int64] = arrays["offsets"]
        self._keys = arrays["keys"]
        self.first_key = int(arrays["first_key"][0])
        self.is_consecutive = not len(self._keys)
        self.identity_offsets: NDArray[np.int64] = arrays["identity_offsets"]

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.offsets)

    def key(self, image: int) -> int:
        """Return the key of an image."""
        return self.first_key + image if self.is_consecutive else int(self._keys[image])


def _build(path: Path, file: RecordFile) -> Arrays:
    keys, offsets = read_keys(path, file)
    images = _find_images(path, file, keys, offsets)
    image_keys = keys[images]
    is_consecutive = image_keys[-1] - image_keys[0] == len(image_keys) - 1
    return {
        "offsets": offsets[images].astype("<i8"),
        "identity_offsets": offsets[images.stop :].astype("<i8"),
        "first_key": image_keys[:1].astype("<i8"),
        "keys": image_keys[: 0 if is_consecutive else None].astype("<i8"),
    }


def _fits_together(index: Arrays) -> bool:
    """Whether a cached index has the right form; wrong offsets are found when they are used."""
    offsets, keys = index["offsets"], index["keys"]
    return (
        len(offsets) > 0
        and len(keys) in (0, len(offsets))
        and len(index["first_key"]) == 1
        and offsets.dtype.str == index["identity_offsets"].dtype.str == "<i8"
    )


def _find_images(
    path: Path, file: RecordFile, keys: NDArray[np.int64], offsets: NDArray[np.int64]
) -> slice:
    """Return which records are images; identity records follow them."""
    bounds = _range_at(file, int(offsets[0])) if keys[0] == 0 else None
    if bounds is None:
        if _range_at(file, int(offsets.max())) is not None:
            raise DataError(
                f"{path} ends with identity records, but no record 0 announces them; copy it and "
                "its .idx again, or delete the .idx to have the .rec scanned"
            )
        return slice(0, len(keys))
    start, stop = _undo_rounding(file, bounds, keys, offsets)
    if not keys[0] < start <= stop == keys[-1] + 1 or start != int(start):
        raise DataError(
            f"{path}: its first record announces identities at keys {start:.10g} to "
            f"{stop:.10g}, but the last key is {keys[-1]}; copy the .rec and the .idx again"
        )
    images = slice(1, int(np.searchsorted(keys, start)))
    if images.stop == 1:
        raise DataError(f"{path} holds no images; pack the set again")
    last, *first = offsets[images.stop - 1 : images.stop + 1].tolist()
    if _range_at(file, last) is not None or any(_has_image(file, offset) for offset in first):
        raise DataError(
            f"{path}: its first record announces identities at keys {start:.10g} to {stop:.10g}, "
            "but they begin at another key; copy the .rec and the .idx again"
        )
    return images


def _has_image(file: RecordFile, offset: int) -> bool:
    """Return True for a record with an image, False for a broken one, too."""
    with contextlib.suppress(BrokenRecordError):
        return len(file.read(offset).payload) > 0
    return False


def _range_at(file: RecordFile, offset: int) -> Optional[tuple[float, float]]:
    """Return the two labels of a record without an image, None for any other record."""
    with contextlib.suppress(BrokenRecordError):
        labels, payload = file.read(offset)
        if len(labels) == 2 and not len(payload):
            return labels[0], labels[1]
    return None


def _undo_rounding(
    file: RecordFile,
    bounds: tuple[float, float],
    keys: NDArray[np.int64],
    offsets: NDArray[np.int64],
) -> tuple[float, float]:
    """Make the key range of the identity records exact where float32 has rounded it."""
    start, stop = bounds
    if not FLOAT32_EXACT < stop < MAX_KEY:
        return start, stop
    if abs(keys[-1] + 1 - stop) <= np.spacing(np.float32(stop)):
        stop = float(keys[-1] + 1)
    margin = np.spacing(np.float32(start))
    near = range(*np.searchsorted(keys, [start - margin, start + margin]).tolist())
    ranges = (float(keys[i]) for i in near if _range_at(file, int(offsets[i])) is not None)
    return next(ranges, start), stop
