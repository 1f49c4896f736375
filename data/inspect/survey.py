"""What there is in a set: every image looked at once.

Whoever trains for weeks wants to know before it which images are broken, which are the same image
under two identities, and how many identities have too few images to learn from.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.images.decoding import decode_rgb
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError, Payload
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
        sizes: how many images have which height and width.
        bad: a line for each image that cannot be used, with its key or number.
        labels: int64 ``[images]``: the identity of each, -1 where it is unreadable; empty in a
            verification set.
        repeated: pairs of indices, int64 ``[n, 2]``: an image, and an earlier one with the same
            bytes.
    """

    bytes: int
    sizes: Counter[Size]
    bad: list[str]
    labels: NDArray[np.int64]
    repeated: NDArray[np.int64]


class _Finding(NamedTuple):
    """What is found out about one image."""

    label: int
    bytes: int
    digest: int
    size: Size | None
    problem: str


def survey_records(records: RecordSet, workers: int) -> Survey:
    """Decode every image of a record set.

    Args:
        records: the set.
        workers: how many decode at once.
    """
    return _survey(partial(_look_at_record, records), range(len(records)), workers)


def survey_pairs(pairs: VerificationSet, workers: int) -> Survey:
    """Decode every image of a verification set; the images of several pairs count once for each."""
    return _survey(partial(_look_at_image, pairs), range(len(pairs)), workers)


def _survey(look: Callable[[int], _Finding], images: Sequence[int], workers: int) -> Survey:
    sizes: Counter[Size] = Counter()
    bad = []
    total = 0
    # Plain arrays: millions of findings as objects would fill the memory.
    labels, digests = np.empty((2, len(images)), np.int64)
    with map_in_order(look, images, workers) as findings:
        for index, finding in enumerate(track(findings, len(images), "checking images")):
            labels[index], digests[index] = finding.label, finding.digest
            total += finding.bytes
            if finding.problem:
                bad.append(finding.problem)
            if finding.size is not None:
                sizes[finding.size] += 1
    return Survey(total, sizes, bad, labels, _find_repeated(digests))


def _look_at_record(records: RecordSet, index: int) -> _Finding:
    try:
        payload, label, key = records.read(index)
    except DataError as error:
        return _Finding(_NO_LABEL, 0, -index - 1, None, _without(f"{records.path}: ", error))
    finding = _look(payload, label, f"record {key}")
    if finding.size is None or finding.size == records.image_size:
        return finding
    (height, width), (right_height, right_width) = finding.size, records.image_size
    return finding._replace(
        problem=f"record {key}: the image has {height} x {width} pixels, the set "
        f"{right_height} x {right_width}"
    )


def _look_at_image(pairs: VerificationSet, index: int) -> _Finding:
    return _look(pairs.images[index], _NO_LABEL, f"image {index}")


def _look(payload: Payload, label: int, name: str) -> _Finding:
    size, problem = None, ""
    try:
        height, width = decode_rgb(payload).shape[:2]
        size = height, width
    except BrokenRecordError as error:
        problem = f"{name}: {error}"
    digest = hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()
    return _Finding(label, len(payload), int.from_bytes(digest, "little") >> 1, size, problem)


def _find_repeated(digests: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``[later, earlier]`` of the images with equal digests, int64 ``[n, 2]``."""
    order = np.argsort(digests, kind="stable")
    is_first = np.diff(digests[order], prepend=digests[order[:1]] - 1) != 0
    firsts = order[np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))]
    pairs = np.stack([order, firsts], axis=1)[~is_first]
    repeated: NDArray[np.int64] = pairs[np.argsort(pairs[:, 0])]
    return repeated


def _without(prefix: str, error: DataError) -> str:
    return str(error).removeprefix(prefix)
