"""What is written can be read, whatever it is."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from backbones.graph.parameter_file import read_parameters, write_parameters
from data import plain_pickle
from data.records.record_set import RecordSet
from data.records.recordio import RecordFile, encode
from data.records.writer import RecordWriter

MAGIC = b"\x0a\x23\xd7\xce"
# Bytes in which the magic number of the format turns up.
payloads = st.lists(st.sampled_from([MAGIC, b"\0", b"abcd", b"\x0a\x23"]) | st.binary()).map(
    b"".join
)
types = st.sampled_from(["<f4", "<f8", "<f2", "u1", "<i4", "i1", "<i8", "?"])
dimensions = arrays.array_shapes(max_dims=4, max_side=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("round")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(contents=st.lists(st.tuples(st.integers(0, 1 << 24), payloads), min_size=1, max_size=5))
def test_records(folder: Path, contents: list[tuple[int, bytes]]) -> None:
    path = folder / "a.rec"
    path.write_bytes(b"".join(encode((float(c),), i, p) for i, (c, p) in enumerate(contents)))
    file = RecordFile(path)
    read = [file.read(int(offset)) for offset in file.scan()[1]]
    assert [(labels[0], bytes(payload)) for labels, payload in read] == contents
    assert file.first_labels(file.scan()[1]).tolist() == [label for label, _ in contents]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(classes=st.lists(st.lists(payloads.filter(len), min_size=1, max_size=3), min_size=1))
def test_sets(folder: Path, classes: list[list[bytes]]) -> None:
    with RecordWriter(folder / "set", image_size=(2, 3)) as writer:
        for label, images in enumerate(classes):
            for image in images:
                writer.write(image, label)
    records = RecordSet(folder / "set")
    read = map(records.image, range(len(records)))
    expected = [(image, label) for label, images in enumerate(classes) for image in images]
    assert [(bytes(payload), label) for payload, label in read] == expected
    assert np.bincount(records.labels()).tolist() == [len(images) for images in classes]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tensors=st.dictionaries(
    st.text(min_size=1, max_size=9).filter(lambda name: name.isprintable()),
    types.flatmap(lambda dtype: arrays.arrays(dtype, dimensions)), max_size=4,
))  # fmt: skip
def test_parameters(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    path = folder / "a.params"
    with path.open("wb") as file:
        write_parameters(file, tensors)
    read = read_parameters(path)
    assert list(read) == list(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        assert read[name].tobytes() == tensor.tobytes()


# Larger ones are of another kind in old pickles, and no set needs them.
integers = st.integers(-(2**31), 2**31 - 1)
plain = st.recursive(
    st.none()
    | st.booleans()
    | integers
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(min_size=1),
    lambda inner: st.lists(inner)
    | st.tuples(inner, inner)
    # Larger keys could all have one hash.
    | st.dictionaries(st.text() | st.binary(min_size=1) | st.integers(0, 2**20 - 1), inner),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(value=plain, protocol=st.integers(0, 5))
def test_pickles(value: object, protocol: int) -> None:
    assert plain_pickle.load(pickle.dumps(value, protocol)) == value


@settings(max_examples=100, deadline=None, derandomize=True)
@given(value=st.sets(st.integers(), min_size=1) | st.complex_numbers())
def test_other_pickles_are_refused(value: object) -> None:
    for protocol in range(6):
        with pytest.raises(plain_pickle.UnsafePickleError):
            plain_pickle.load(pickle.dumps(value, protocol))


def test_mxnet_reads_and_writes_the_same_bytes(tmp_path: Path) -> None:
    from runtime.mxnet import mx

    tensors: dict[str, NDArray[Any]] = {
        "arg:a_weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "aux:b": np.ones((1,), np.float16),
        "c": np.arange(4, dtype=np.int64),
    }
    mx.nd.save(
        str(tmp_path / "theirs"), {k: mx.nd.array(v, dtype=v.dtype) for k, v in tensors.items()}
    )
    ours = io.BytesIO()
    write_parameters(ours, tensors)
    assert ours.getvalue() == (tmp_path / "theirs").read_bytes()
