"""Lines and words of text files that other programs have written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from data.text_list import read_lines, splits
from runtime.errors import DataError


@pytest.mark.parametrize(
    "content",
    [
        "a é\n\nb\n".encode(),
        "a é\n\nb".encode(),
        "\ufeffa é\r\n\r\nb\r\n".encode(),
        "a é\r\rb\r".encode(),
        "a é\r\n\r\nb".encode("utf-16"),
        "\ufeffa é\n\nb\n".encode("utf-16-be"),
    ],
)
def test_lines_of_any_system(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "list").write_bytes(content)
    assert read_lines(tmp_path / "list", "a list") == ["a é", "", "b"]


def test_bytes_of_names_and_separators_of_python_stay(tmp_path: Path) -> None:
    content = b"m\xfc.jpg\nx\x0cy\xc2\x85z\xe2\x80\xa8.jpg\n"
    (tmp_path / "list").write_bytes(content)
    found = read_lines(tmp_path / "list", "a list")
    assert [os.fsencode(line) for line in found] == content.split(b"\n")[:-1]


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "odd").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "binary").write_bytes(b"\xff\xd8\xff\0\x10")
    for name in ("pipe", "odd", "binary", "nowhere", "."):
        with pytest.raises(DataError, match="cannot be read as a list of pairs: "):
            read_lines(tmp_path / name, "a list of pairs")


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
