"""Training sets that are the same, have grown, or hold other images."""

from __future__ import annotations

import json
from typing import Any, Optional

import pytest

from data import contents
from data.contents import Images, describe, find_difference
from runtime.errors import DataError


class Listed:
    """Images that are their bytes and their classes; None is a broken one."""

    def __init__(self, images: list[Optional[tuple[bytes, int]]], files: str = "") -> None:
        self._images, self._files = images, files or str(images)
        self.read = 0

    def __len__(self) -> int:
        return len(self._images)

    def image(self, index: int) -> tuple[bytes, int]:
        self.read += 1
        found = self._images[index]
        if found is None:
            raise DataError("broken")
        return found

    def fingerprint(self) -> str:
        return self._files


def grouped(counts: list[int], first: int = 0) -> list[Any]:
    """So many images of each class, from a number on that other sets do not have."""
    return [
        (b"%d %d" % (label, first + number), label)
        for label, count in enumerate(counts)
        for number in range(count)
    ]


def compared(before: list[Any], now: list[Any]) -> Optional[tuple[bool, str]]:
    saved = json.loads(json.dumps(describe(Listed(before))))
    images = Listed(now)
    return find_difference(images, describe(images), saved)


def test_what_is_said_of_a_set() -> None:
    images = Listed([(b"123456789", 4), None, (b"", 2)], "here")
    assert isinstance(images, Images)
    # The check value of CRC-32.
    sample = [[0, 4, 0xCBF43926], [2, 2, 0]]
    assert describe(images) == {"images": 3, "fingerprint": "here", "sample": sample}


def test_a_sample_of_many_images_is_read() -> None:
    images = Listed(grouped([10_000]))
    places = [place for place, _, _ in describe(images)["sample"]]
    assert images.read == len(places) == 64 and (places[0], places[-1]) == (0, 9999)


MANY = [30] * 20


@pytest.mark.parametrize("counts", [[1], [3, 1, 4], MANY])
def test_the_same_set_is_no_difference(counts: list[int]) -> None:
    assert compared(grouped(counts), grouped(counts)) is None


def in_the_classes(images: list[Any]) -> list[Any]:
    """Three further images of each class, before its images."""
    labels = sorted({label for _, label in images})
    return sorted([*((b"new", label) for label in labels * 3), *images], key=lambda one: one[1])


def mixed(images: list[Any]) -> list[Any]:
    return [images[7 * number % len(images)] for number in range(len(images))]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (grouped(MANY), [*grouped(MANY), (b"new", 19)]),
        (grouped(MANY), in_the_classes(grouped(MANY))),
        (mixed(grouped(MANY)), [*mixed(grouped(MANY)), (b"new", 0)]),
        ([(b"a", 0), None], [(b"a", 0), None, (b"b", 1)]),
        ([(b"a", 0), None, (b"c", 2)], [(b"a", 0), None, (b"b", 1), (b"c", 2)]),
    ],
)
def test_more_images(before: list[Any], now: list[Any]) -> None:
    text = f"{len(before)} images there, {len(now)} here"
    assert compared(before, now) == (True, text)


ANOTHER = grouped(MANY)
ANOTHER[3] = (b"other", 0)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        # As many others, and more others.
        (grouped(MANY), grouped(MANY, 99)),
        (grouped(MANY), grouped([31] * 20, 99)),
        # One more, which nothing says of the others that are missing.
        (grouped([2] * 5), [*grouped([2] * 4), (b"x", 4), (b"y", 4), (b"z", 4)]),
        # Other classes of the same images, and another order.
        ([(b"a", 0), (b"b", 1)], [(b"a", 1), (b"b", 0)]),
        ([(b"a", 0), (b"b", 1)], [(b"a", 1), (b"b", 0), (b"c", 1)]),
        # Nothing could be read; one that is in no sample counts by the files.
        ([None], [(b"a", 0), (b"b", 1)]),
        (grouped(MANY), ANOTHER),
    ],
)
def test_other_images(before: list[Any], now: list[Any]) -> None:
    text = f"{len(before)} images there, {len(now)} here, of which some are others"
    assert compared(before, now) == (False, text)
    fewer = (False, "600 images there, 599 here")
    assert compared(grouped(MANY), grouped(MANY)[:-1]) == fewer


def test_few_images_of_a_large_class_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_LOOKED_AT", 5)
    saved = describe(Listed([(b"a", 0), (b"b", 1)]))
    for before, has_grown in ((4, True), (5, False)):
        images = Listed([(b"a", 0), *[(b"new", 1)] * before, (b"b", 1)])
        found = find_difference(images, describe(images), saved)
        assert found is not None and found.has_grown == has_grown


@pytest.mark.parametrize(
    "change",
    [
        *({"images": wrong} for wrong in ("many", None, float("inf"))),
        *({"sample": wrong} for wrong in (7, [1], [[0, 0]], [[0, "a", 0]])),
    ],
)
def test_a_checkpoint_that_says_nothing_of_its_images_is_no_difference(
    change: dict[str, Any],
) -> None:
    images = Listed(grouped([2]))
    said = describe(images)
    saved: list[Any] = [{**said, **change}, None, "none", 7, [], {}]
    for one in saved:
        assert find_difference(images, describe(images), one) is None


@pytest.mark.parametrize("place", [-1, 2**70, -(2**70)])
def test_places_that_no_set_has_are_no_crash(place: int) -> None:
    images = Listed(grouped([2]))
    said = {"images": 1, "sample": [[place, 2**70, 0]]}
    found = find_difference(images, describe(images), said)
    assert found is not None and not found.has_grown
