"""Rows and their index: read back, and by NumPy and safetensors; files that are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from evaluation.embed import files
from evaluation.embed.files import RowsFile, read_embeddings, reserve, write_safetensors
from runtime.errors import DataError
from tests.evaluation.support import write_embeddings


def test_names_and_labels_come_back(tmp_path: Path) -> None:
    images = [("a b/ü.jpg", "ann"), ("b\udcff.jpg", ""), ("set/train.rec:7", "7")]
    found = read_embeddings(write_embeddings(tmp_path / "x", np.eye(3), *images))
    assert list(zip(found.names, found.labels)) == images
    lines = (tmp_path / "x.tsv").read_bytes().splitlines()
    assert lines[:2] == ["0\ta b/ü.jpg\tann".encode(), b"1\tb\xff.jpg\t"]
    assert isinstance(found.rows, np.memmap)


def test_an_index_that_a_spreadsheet_has_written_or_none(tmp_path: Path) -> None:
    path = write_embeddings(tmp_path / "x", np.eye(2), ("a", ""), ("b", ""))
    assert read_embeddings(path).labels == []
    # Labels are compared with those of other files.
    (tmp_path / "x.tsv").write_bytes(b"\xef\xbb\xbf0\ta\tann\r\n1\tb\t\r\n")
    found = read_embeddings(path)
    assert (found.names, found.labels) == (["a", "b"], ["ann", ""])
    (tmp_path / "x.tsv").unlink()
    found = read_embeddings(path)
    assert (found.names, found.labels) == (["0", "1"], [])


@pytest.mark.parametrize(
    ("rows", "index", "message"),
    [
        (None, "", "x.npy cannot be read: No such file"),
        (np.eye(2, dtype=int), "", r"x.npy holds no embeddings, floats \[n, D\]"),
        (np.zeros((0, 4)), "", "holds no embedding; its shape"),
        (np.eye(3), "0\ta\t\n1\tb\t\n", "has 2 lines, and .*x.npy 3 rows"),
        (np.eye(3), "0\ta\t\n2\tb\t\n3\tc\t\n", "line 2 is .* instead of the number 1"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, rows, index: str, message: str) -> None:
    (tmp_path / "x.tsv").write_text(index)
    if rows is not None:
        np.save(tmp_path / "x.npy", rows)
    with pytest.raises(DataError, match=message):
        read_embeddings(tmp_path / "x.npy")


@pytest.mark.parametrize("shape", [(1, 1), (123456, 2)])
def test_a_reserved_file_is_whole_and_numpy_reads_it(tmp_path: Path, shape) -> None:
    with (tmp_path / "x.npy").open("wb") as file:
        reserve(file, *shape)
    found = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert found.shape == shape and found.dtype == np.float32 and not found.any()


@pytest.mark.parametrize("block", [1, 3, 4096])
def test_gaps_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(files, "_BLOCK", block)
    values = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    parts, path = [(0, 5), (7, 0), (8, 7), (16, 4)], tmp_path / "x.npy"
    with path.open("wb") as made:
        reserve(made, 20, 3)
    with RowsFile(path, 3) as file:
        for first, count in parts:
            file.write(first, values[first : first + count])
        assert file.close_gaps(parts) == 16
    kept = np.concatenate([values[first : first + count] for first, count in parts])
    np.testing.assert_array_equal(np.load(path), kept)
    assert path.stat().st_size == 128 + 16 * 3 * 4
    with (tmp_path / "x.safetensors").open("wb") as written:
        write_safetensors(path, written, (16, 3), {"model": "m,0"})
    with safe_open(tmp_path / "x.safetensors", "np") as found:
        assert found.metadata() == {"model": "m,0"} and list(found.keys()) == ["embeddings"]
        np.testing.assert_array_equal(found.get_tensor("embeddings"), kept)
