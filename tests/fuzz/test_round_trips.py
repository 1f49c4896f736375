"""Parameters that are written can be read, whatever they are."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from runtime.untrusted.parameter_file import read_parameters, write_parameters

types = st.sampled_from(["<f4", "<f8", "<f2", "u1", "<i4", "i1", "<i8", "?"])
dimensions = arrays.array_shapes(max_dims=4, max_side=4)
names = st.text(min_size=1, max_size=9).filter(str.isprintable)
tensors = types.flatmap(lambda dtype: arrays.arrays(dtype, dimensions))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("round")


@settings(max_examples=25, deadline=None, derandomize=True)
@given(written=st.dictionaries(names, tensors, max_size=4))
def test_parameters(folder: Path, written: dict[str, np.ndarray]) -> None:
    path = folder / "a.params"
    with path.open("wb") as file:
        write_parameters(file, written)
    read = read_parameters(path)
    assert list(read) == list(written)
    for name, tensor in written.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        assert read[name].tobytes() == tensor.tobytes()


def test_mxnet_reads_and_writes_the_same_bytes(tmp_path: Path) -> None:
    from runtime.mxnet import mx

    ours: dict[str, NDArray[Any]] = {
        "arg:a_weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "aux:b": np.ones((1,), np.float16),
        "c": np.arange(4, dtype=np.int64),
    }
    theirs = {name: mx.nd.array(array, dtype=array.dtype) for name, array in ours.items()}
    mx.nd.save(str(tmp_path / "theirs"), theirs)
    file = io.BytesIO()
    write_parameters(file, ours)
    assert file.getvalue() == (tmp_path / "theirs").read_bytes()
