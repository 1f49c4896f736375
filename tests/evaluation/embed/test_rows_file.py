"""Rows in a ``.npy`` file: read back by NumPy, gaps closed, and safetensors by its description."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evaluation.embed import rows_file
from evaluation.embed.rows_file import RowsFile, reserve, write_safetensors


def made(path: Path, rows: int, width: int) -> Path:
    with path.open("wb") as file:
        reserve(file, rows, width)
    return path


@pytest.mark.parametrize("shape", [(1, 1), (10, 3), (123456, 2)])
def test_a_reserved_file_is_whole_and_numpy_reads_it(tmp_path: Path, shape) -> None:
    found = np.load(made(tmp_path / "x.npy", *shape), mmap_mode="r")
    assert found.shape == shape and found.dtype == np.float32 and not found.any()


@pytest.mark.parametrize("block", [1, 3, 4096])
def test_gaps_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(rows_file, "_BLOCK", block)
    values = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    parts = [(0, 5), (7, 0), (8, 7), (16, 4)]
    path = made(tmp_path / "x.npy", 20, 3)
    with RowsFile(path, 3) as file:
        for first, count in parts:
            file.write(first, values[first : first + count])
        assert file.close_gaps(parts) == 16
    kept = np.concatenate([values[first : first + count] for first, count in parts])
    np.testing.assert_array_equal(np.load(path), kept)
    assert path.stat().st_size == 128 + 16 * 3 * 4


def test_safetensors(tmp_path: Path) -> None:
    values = np.arange(15, dtype=np.float32).reshape(5, 3)
    path = made(tmp_path / "x.npy", 5, 3)
    with RowsFile(path, 3) as rows:
        rows.write(0, values)
    with (tmp_path / "x.safetensors").open("wb") as file:
        write_safetensors(path, file, (5, 3), {"model": "m,0"})
    content = (tmp_path / "x.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0 and header["__metadata__"] == {"model": "m,0"}
    assert header["embeddings"] == {"dtype": "F32", "shape": [5, 3], "data_offsets": [0, 60]}
    assert content[8 + length :] == values.astype("<f4").tobytes()
