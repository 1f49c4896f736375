"""Rows in a ``.npy`` file: read back by NumPy, gaps closed, and as safetensors by that library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from evaluation.embed import rows_file
from evaluation.embed.rows_file import RowsFile, pack_rows, reserve, write_safetensors


@pytest.mark.parametrize("shape", [(1, 1), (10, 3), (123456, 2)])
def test_a_reserved_file_is_whole_and_numpy_reads_it(tmp_path: Path, shape) -> None:
    with (tmp_path / "x.npy").open("wb") as file:
        reserve(file, *shape)
    found = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert found.shape == shape and found.dtype == np.float32 and not found.any()


@pytest.mark.parametrize("block", [1, 3, 4096])
def test_gaps_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(rows_file, "_BLOCK", block)
    values = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    parts = [(0, 5), (7, 0), (8, 7), (16, 4)]
    path = tmp_path / "x.npy"
    with path.open("wb") as made:
        reserve(made, 20, 3)
    with RowsFile(path, 3) as file:
        for first, count in parts:
            file.write(first, values[first : first + count])
        assert file.close_gaps(parts) == 16
    kept = np.concatenate([values[first : first + count] for first, count in parts])
    np.testing.assert_array_equal(np.load(path), kept)
    assert path.stat().st_size == 128 + 16 * 3 * 4
    assert path.read_bytes() == pack_rows(kept)
    with (tmp_path / "x.safetensors").open("wb") as written:
        write_safetensors(path, written, (16, 3), {"model": "m,0"})
    with safe_open(tmp_path / "x.safetensors", "np") as found:
        assert found.metadata() == {"model": "m,0"} and list(found.keys()) == ["embeddings"]
        np.testing.assert_array_equal(found.get_tensor("embeddings"), kept)
