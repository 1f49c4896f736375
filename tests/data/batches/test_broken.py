from __future__ import annotations

import logging

import pytest

from data.batches.broken import BrokenImages
from data.records.recordio import BrokenRecordError
from runtime.errors import DataError


def broken(number: int) -> BrokenRecordError:
    return BrokenRecordError(f"file {number}: it is damaged")


def test_an_image_is_named_once(caplog) -> None:
    images = BrokenImages(2, 9)
    with caplog.at_level(logging.WARNING, "data"):
        for index in (5, 7, 5, 5):
            images.add(index, broken(index))
    assert images.found == {5, 7}
    assert [record.getMessage() for record in caplog.records] == [
        "skipped a broken record: file 5: it is damaged",
        "skipped a broken record: file 7: it is damaged",
    ]


def test_more_than_the_limit_are_an_error() -> None:
    images = BrokenImages(1, 9)
    images.add(3, broken(3))
    with pytest.raises(DataError, match="2 broken records, more than the 1 of --max-bad-records; "
                                        "the last is file 4: it is damaged"):  # fmt: skip
        images.add(4, broken(4))


def test_all_of_a_set_are_an_error_below_the_limit() -> None:
    images = BrokenImages(100, 2)
    images.add(0, broken(0))
    with pytest.raises(DataError, match="2 broken records, which are all of the set"):
        images.add(1, broken(1))
