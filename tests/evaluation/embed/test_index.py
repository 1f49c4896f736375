"""The index beside the rows, and files that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluation.embed.index import read_embeddings, write_index
from runtime.errors import DataError


def written(folder: Path, rows: np.ndarray, images: list[tuple[str, str]]) -> Path:
    np.save(folder / "x.npy", rows)
    with (folder / "x.tsv").open("wb") as file:
        write_index(file, images)
    return folder / "x.npy"


def test_names_and_labels_come_back(tmp_path: Path) -> None:
    images = [("a b/ü.jpg", "ann"), ("b\udcff.jpg", ""), ("set/train.rec:7", "7")]
    found = read_embeddings(written(tmp_path, np.eye(3, dtype=np.float32), images))
    assert list(zip(found.names, found.labels)) == images
    lines = (tmp_path / "x.tsv").read_bytes().splitlines()
    assert lines[0] == "0\ta b/ü.jpg\tann".encode() and lines[1] == b"1\tb\xff.jpg\t"
    assert isinstance(found.rows, np.memmap)


def test_an_index_that_a_spreadsheet_has_written_or_none(tmp_path: Path) -> None:
    path = written(tmp_path, np.eye(2), [("a", ""), ("b", "")])
    assert read_embeddings(path).labels == []
    # Labels are compared with those of other files.
    (tmp_path / "x.tsv").write_bytes(b"\xef\xbb\xbf0\ta\tann\r\n1\tb\t\r\n")
    found = read_embeddings(path)
    assert (found.names, found.labels) == (["a", "b"], ["ann", ""])
    (tmp_path / "x.tsv").unlink()
    found = read_embeddings(path)
    assert (found.names, found.labels) == (["0", "1"], [])


def test_other_arrays_and_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with pytest.raises(DataError, match="x.npy cannot be read: No such file"):
        read_embeddings(path)
    np.save(path, np.eye(2, dtype=int))
    with pytest.raises(DataError, match=r"x.npy holds no embeddings, floats \[n, D\]"):
        read_embeddings(path)
    np.save(path, np.zeros((0, 4)))
    with pytest.raises(DataError, match="holds no embedding; its shape"):
        read_embeddings(path)


def test_an_index_of_other_rows_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, np.eye(3), [("a", ""), ("b", "")])
    with pytest.raises(DataError, match="has 2 lines, and .*x.npy 3 rows"):
        read_embeddings(path)
    (tmp_path / "x.tsv").write_text("0\ta\t\n2\tb\t\n3\tc\t\n")
    with pytest.raises(DataError, match="line 2 is .* instead of the number 1"):
        read_embeddings(path)
