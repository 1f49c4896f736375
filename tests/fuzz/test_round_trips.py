"""Parameters that are written can be read, here and by MXNet."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from runtime.untrusted.parameter_file import read_parameters, write_parameters

TYPES = "f2 f4 f8 u1 i1 i4 i8 ?".split()
SHAPES = (1,), (4,), (2, 3), (2, 1, 3), (2, 3, 1, 2)


def test_mxnet_reads_and_writes_the_same_bytes(tmp_path: Path) -> None:
    from runtime.mxnet import mx

    numbers = np.random.default_rng(1)
    ours = {
        f"arg:a_{dtype} é{len(shape)}": numbers.integers(0, 99, shape).astype(dtype)
        for dtype in TYPES
        for shape in SHAPES
    }
    theirs = {name: mx.nd.array(array, dtype=array.dtype) for name, array in ours.items()}
    mx.nd.save(str(tmp_path / "theirs"), theirs)
    file = io.BytesIO()
    write_parameters(file, ours)
    assert file.getvalue() == (tmp_path / "theirs").read_bytes()
    read = read_parameters(tmp_path / "theirs")
    assert list(read) == list(ours)
    for name, array in ours.items():
        assert read[name].dtype == array.dtype and read[name].shape == array.shape
        np.testing.assert_array_equal(read[name], array)
