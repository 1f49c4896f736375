from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation.files import map_floats

TABLE = np.arange(12, dtype=np.float32).reshape(6, 2) / 8


def saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    "table",
    [TABLE, TABLE.astype("f2"), TABLE.astype(">f8"), np.asfortranarray(TABLE), TABLE[:0]],
    ids=["float32", "float16", "big-endian", "Fortran", "empty"],
)
def test_a_table_is_mapped(tmp_path: Path, table: np.ndarray) -> None:
    np.save(tmp_path / "a.npy", table)
    with pytest.raises(FileNotFoundError):
        map_floats(tmp_path / "b.npy")
    found = map_floats(tmp_path / "a.npy")
    assert found is not None and found.dtype == table.dtype
    np.testing.assert_array_equal(found, table)


def test_the_header_of_version_2_and_of_other_writers(tmp_path: Path) -> None:
    version_2, path = io.BytesIO(), tmp_path / "a.npy"
    np.lib.format.write_array(version_2, TABLE, version=(2, 0))
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (6,2)}\n"
    other = b"\x93NUMPY\x01\0" + bytes([len(header), 0]) + header + TABLE.tobytes()
    for content in (version_2.getvalue(), other):
        path.write_bytes(content)
        np.testing.assert_array_equal(np.asarray(map_floats(path)), TABLE)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x93NUMPY", b"\x93NUMPY\x01\0\xff\xff", b"\x93NUMPY\x09\0" + bytes(200),
        saved(TABLE)[:-1], saved(TABLE) + b"\0", saved(TABLE[0]), saved(TABLE.reshape(1, 6, 2)),
        *(saved(TABLE.astype(kind)) for kind in (int, complex, object)),
        *(saved(TABLE).replace(b"(6, 2)", shape) for shape in (b"(-6,2)", b"(6,9)")),
        saved(TABLE).replace(b"False", b"0    "), saved(TABLE).replace(b"'<f4'", b"['f']"),
        saved(TABLE).replace(b"(6, 2), }", b"(6, 2)}#\xff"),
    ],
)  # fmt: skip
def test_anything_else_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npy").write_bytes(content)
    assert map_floats(tmp_path / "a.npy") is None
