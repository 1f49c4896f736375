"""What is written can be read, whatever it is."""

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

from data.records.recordio import RecordFile, encode
from runtime.untrusted.parameter_file import read_parameters, write_parameters

# Bytes in which the magic number of the format turns up.
pieces = st.sampled_from([b"\x0a\x23\xd7\xce", b"\0", b"abcd", b"\x0a\x23"])
payloads = st.lists(pieces | st.binary()).map(b"".join)
types = st.sampled_from(["<f4", "<f8", "<f2", "u1", "<i4", "i1", "<i8", "?"])
dimensions = arrays.array_shapes(max_dims=4, max_side=4)
names = st.text(min_size=1, max_size=9).filter(str.isprintable)
tensors = types.flatmap(lambda dtype: arrays.arrays(dtype, dimensions))
tried = settings(max_examples=25, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("round")


@tried
@given(contents=st.lists(st.tuples(st.integers(0, 1 << 24), payloads), min_size=1, max_size=5))
def test_records(folder: Path, contents: list[tuple[int, bytes]]) -> None:
    path = folder / "a.rec"
    path.write_bytes(b"".join(encode((float(c),), i, p) for i, (c, p) in enumerate(contents)))
    file = RecordFile(path)
    read = [file.read(int(offset)) for offset in file.scan()[1]]
    assert [(labels[0], bytes(payload)) for labels, payload in read] == contents


@tried
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
