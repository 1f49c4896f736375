"""The survey of a set: every image is decoded once.

Before a training of weeks, the user wants to know which images are broken, which are the same image
under two identities, and how many identities have too few images to learn from.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from data.decoding import decode_rgb
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError, Payload
from data.resizing import bring_to
from data.verification.bin_file import VerificationSet
from data.worker_threads import map_in_order, track
from runtime.errors import DataError

Size = tuple[int, int]

_DIGEST_BYTES = 8
_NO_LABEL = -1


@dataclass(frozen=True)
class Survey:
    """The result.

    Attributes:
        bytes: of all encoded images.
        sizes: the number of images by height and width.
        bad: a line for each image that cannot be used, with its key or number.
        labels: int64 ``[images]``: the identity of each, -1 where it is unreadable or the set is a
            verification set.
        repeated: pairs of indices, int64 ``[n, 2]``: an image, and an earlier one with the same
            bytes.
    """

    bytes: int
    sizes: Counter[Size]
    bad: list[str]
    labels: NDArray[np.int64]
    repeated: NDArray[np.int64]


class _Checked(NamedTuple):
    """One image; ``size`` is None if it cannot be decoded, ``problem`` says why not."""

    label: int
    bytes: int
    digest: int
    size: Optional[Size] = None
    problem: str = ""


def survey_records(records: RecordSet, workers: int) -> Survey:
    """Decode every image of a record set in ``workers`` threads."""

    def check(index: int) -> _Checked:
        try:
            payload, label = records.image(index)
        except DataError as error:
            problem = str(error).removeprefix(f"{records.path}: ")
            # A digest that no other image has.
            return _Checked(_NO_LABEL, 0, -index - 1, problem=problem)
        name = f"record {records.key(index)}"
        return _check_image(payload, label, name, records.image_size)

    return _survey(check, len(records), workers)


def survey_pairs(pairs: VerificationSet, workers: int) -> Survey:
    """Decode every image of a verification set; one in several pairs counts once for each."""

    def check(index: int) -> _Checked:
        return _check_image(pairs.images[index], _NO_LABEL, f"image {index}", None)

    return _survey(check, len(pairs), workers)


def _survey(check: Callable[[int], _Checked], count: int, workers: int) -> Survey:
    sizes: Counter[Size] = Counter()
    bad = []
    total = 0
    # Plain arrays: millions of results as objects would fill the memory.
    labels, digests = np.empty((2, count), np.int64)
    with map_in_order(check, range(count), workers) as results:
        for index, image in enumerate(track(results, count, "checking images")):
            labels[index], digests[index] = image.label, image.digest
            total += image.bytes
            if image.problem:
                bad.append(image.problem)
            if image.size is not None:
                sizes[image.size] += 1
    return Survey(total, sizes, bad, labels, _find_repeated(digests))


def _check_image(payload: Payload, label: int, name: str, wanted: Optional[Size]) -> _Checked:
    """Decode an image; one of a set has to have the shape of the ``wanted`` size."""
    size, problem = None, ""
    try:
        image = decode_rgb(payload)
        size = image.shape[0], image.shape[1]
        if wanted is not None:
            bring_to(image, wanted)
    except BrokenRecordError as error:
        problem = f"{name}: {error}"
    digest = hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()
    # Shifted by one bit, it fits into a positive int64.
    number = int.from_bytes(digest, "little") >> 1
    return _Checked(label, len(payload), number, size, problem)


def _find_repeated(digests: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``[later, earlier]`` of the images with equal digests, int64 ``[n, 2]``."""
    _, firsts, numbers = np.unique(digests, return_index=True, return_inverse=True)
    later, earlier = np.arange(len(digests)), firsts[numbers]
    repeated: NDArray[np.int64] = np.stack([later, earlier], axis=1)[later != earlier]
    return repeated
