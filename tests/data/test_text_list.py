"""Words of lines that other programs have written."""

from __future__ import annotations

import pytest

from data.text_list import splits


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a b  1\n", [["a", "b", "1"]]),
        ("a b  1\t\n", [["a b  1"], ["a", "b", "1"]]),
        ("a b\t1\t2", [["a b", "1", "2"], ["a", "b", "1", "2"]]),
        ("a b\t1\t\t2", [["a b", "1", "", "2"]]),
        ("\t1\t2", [["", "1", "2"]]),
        ("a;b,1,,", [["a;b", "1"], ["a", "b,1,,"], ["a;b,1,,"]]),
        ('"a, b", 1', [["a, b", "1"], ["a, b,", "1"]]),
        ('a"b 1', [['a"b', "1"]]),
        ("", [[]]),
    ],
)
def test_words(line: str, expected: list[list[str]]) -> None:
    assert list(splits(line)) == expected
