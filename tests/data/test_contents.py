from __future__ import annotations

import json
from typing import Any

import pytest

from data import contents
from data.contents import Images, describe, find_difference
from runtime.errors import DataError


class Listed:
    """Images that are their bytes and their classes; None is a broken one."""

    def __init__(self, images, files: str = "") -> None:
        self._images, self._files = images, files or str(images)
        self.read = 0

    def __len__(self) -> int:
        return len(self._images)

    def image(self, index: int):
        self.read += 1
        if self._images[index] is None:
            raise DataError("broken")
        return self._images[index]

    def fingerprint(self) -> str:
        return self._files


def grouped(counts, first: int = 0) -> list[Any]:
    """So many images of each class, from a number on that other sets do not have."""
    return [
        (b"%d %d" % (label, first + number), label)
        for label, count in enumerate(counts)
        for number in range(count)
    ]


def test_what_is_said_of_a_set() -> None:
    images = Listed([(b"123456789", 4), None, (b"", 2)], "here")
    assert isinstance(images, Images)
    # The check value of CRC-32.
    sample = [[0, 4, 0xCBF43926], [2, 2, 0]]
    assert describe(images) == {"images": 3, "fingerprint": "here", "sample": sample}
    # Of many, a sample is read.
    images = Listed(grouped([10_000]))
    places = [place for place, _, _ in describe(images)["sample"]]
    assert images.read == len(places) == 64 and (places[0], places[-1]) == (0, 9999)


ALL = grouped([30] * 20)
# Three further images of each class, before its images.
WITHIN = sorted([*((b"new", label) for label in [*range(20)] * 3), *ALL], key=lambda one: one[1])
MIXED = [ALL[7 * number % len(ALL)] for number in range(len(ALL))]
A, B, C = (b"a", 0), (b"b", 1), (b"c", 2)


@pytest.mark.parametrize(("before", "now", "has_grown"), [
    (ALL, ALL, None),
    (ALL, [*ALL, (b"new", 19)], True),
    (ALL, WITHIN, True),
    (MIXED, [*MIXED, (b"new", 0)], True),
    ([A, None], [A, None, B], True),
    ([A, None, C], [A, None, B, C], True),
    # As many others, and more others; fewer.
    (ALL, grouped([30] * 20, 99), False),
    (ALL, grouped([31] * 20, 99), False),
    (ALL, ALL[:-1], False),
    # One more, which says nothing of the others that are missing.
    (grouped([2] * 5), [*grouped([2] * 4), (b"x", 4), (b"y", 4), (b"z", 4)], False),
    # Other classes of the same images, and another order.
    ([A, B], [(b"a", 1), (b"b", 0), (b"c", 1)], False),
    # Nothing could be read; one that is in no sample counts by the files.
    ([None], [A, B], False),
    (ALL, [*ALL[:3], (b"other", 0), *ALL[4:]], False),
])  # fmt: skip
def test_differences(before, now, has_grown) -> None:
    saved = json.loads(json.dumps(describe(Listed(before))))
    images = Listed(now)
    text = f"{len(before)} images there, {len(now)} here"
    text += ", of which some are others" * (has_grown is False and len(now) >= len(before))
    expected = None if has_grown is None else (has_grown, text)
    assert find_difference(images, describe(images), saved) == expected


@pytest.mark.parametrize(("before", "has_grown"), [(4, True), (5, False)])
def test_few_images_of_a_large_class_are_read(monkeypatch, before: int, has_grown: bool) -> None:
    monkeypatch.setattr(contents, "_LOOKED_AT", 5)
    images = Listed([A, *[(b"new", 1)] * before, B])
    found = find_difference(images, describe(images), describe(Listed([A, B])))
    assert found is not None and found.has_grown == has_grown


def test_what_a_damaged_checkpoint_says_of_images() -> None:
    images = Listed(grouped([2]))
    said = describe(images)
    saved: list[Any] = [None, "none", 7, [], {}]
    saved += [{**said, "images": wrong} for wrong in ("many", None, float("inf"))]
    saved += [{**said, "sample": wrong} for wrong in (7, [1], [[0, 0]], [[0, "a", 0]])]
    assert all(find_difference(images, said, one) is None for one in saved)
    for place in (-1, 2**70, -(2**70)):
        found = find_difference(images, said, {"images": 1, "sample": [[place, 2**70, 0]]})
        assert found is not None and not found.has_grown
