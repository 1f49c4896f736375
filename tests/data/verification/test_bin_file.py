from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from data.resizing import bring_to
from data.verification.bin_file import VerificationSet, read_bin, write_bin
from tests.support.sets import assert_refused


@pytest.fixture
def faces(make_image) -> list[bytes]:
    return [make_image(number) for number in range(6)]


@pytest.fixture
def pickled(tmp_path):
    """Return a function that writes a pickle and returns its path."""

    def write(content: object, protocol: int = 4) -> Path:
        (tmp_path / "set.bin").write_bytes(pickle.dumps(content, protocol))
        return tmp_path / "set.bin"

    return write


def test_a_written_set_reads_back(tmp_path, faces) -> None:
    write_bin(tmp_path / "lfw.bin", faces, [True, False, True])
    target = read_bin(str(tmp_path / "lfw.bin"))
    assert (target.name, len(target), target.same.tolist()) == ("lfw", 6, [True, False, True])
    assert target.images == faces
    assert pickle.loads((tmp_path / "lfw.bin").read_bytes()) == (faces, [True, False, True])
    pixels = target.decode([2, 1, 4, 1], (16, 16))
    assert pixels.shape == (4, 3, 16, 16) and pixels.dtype == np.uint8
    assert pixels[:, 0, 0, 0].tolist() == [2, 1, 4, 1]
    assert (pixels[0] == np.array([2, 7, 253])[:, None, None]).all()
    # As images of a record set, whose sizes are compared with MXNet's.
    noise = np.random.default_rng(0).integers(0, 256, (250, 250, 3), np.uint8)
    large = cv2.imencode(".png", noise[..., ::-1])[1].tobytes()
    target = VerificationSet(Path("a.bin"), [large] * 2, np.ones(1, np.bool_))
    scaled = target.decode([1], (112, 112))
    assert (scaled[0] == bring_to(noise, (112, 112)).transpose(2, 0, 1)).all()


def test_images_of_several_pairs_are_known_by_their_bytes(faces) -> None:
    images = [faces[0], faces[1], faces[2], bytes(bytearray(faces[0])), faces[2], faces[2]]
    target = VerificationSet(Path("a.bin"), images, np.array([True, False, True]))
    assert target.firsts.tolist() == [0, 1, 2, 0, 2, 2]
    assert target.firsts.dtype == np.int64
    # An image of many pairs is compared once.
    first, second = (bytes(bytearray(1_000_000)) for _ in range(2))
    target = VerificationSet(Path("a.bin"), [first] + [second] * 99_999, np.ones(50_000, np.bool_))
    began = time.process_time()
    assert not target.firsts.any() and len(target.firsts) == 100_000
    assert time.process_time() - began < 1


IMAGES_AS: list[Any] = [
    list,
    lambda faces: [np.frombuffer(face, np.uint8).reshape(-1, 1) for face in faces],
    lambda faces: np.array([bytearray(face) for face in faces], object).reshape(3, 2),
    np.array,
]
ANSWERS_AS = [
    (True, False, True),
    [np.bool_(True), 0.0, 1],
    *(np.array([1, 0, 1], kind) for kind in (bool, np.uint8, ">i4", np.float32, object)),
    np.array([[True], [False], [True]]),
]


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_every_plain_form_is_read(pickled, faces, protocol: int) -> None:
    """test_plain_pickle has what arrays become."""
    parts = [(make(faces), ANSWERS_AS[0]) for make in IMAGES_AS]
    for images, same in [*parts, *((faces, answers) for answers in ANSWERS_AS)]:
        for content in ([images, same], {b"issame_list": same, b"bins": images, b"more": 1}):
            target = read_bin(pickled(content, protocol))
            assert target.images == faces
            assert target.same.dtype == np.bool_ and target.same.tolist() == [True, False, True]


class Attack:
    def __init__(self, *call: object) -> None:
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", [0, 4])
def test_code_in_a_pickle_does_not_run(tmp_path, pickled, faces, protocol: int) -> None:
    trace = tmp_path / "trace"
    attack = Attack(os.mkdir, str(trace))
    for content in (attack, (faces, [attack] * 3), ([attack, *faces[1:]], [True] * 3)):
        assert_refused("wants to run .*mkdir", read_bin, pickled(content, protocol))
    assert not trace.exists()


@pytest.mark.parametrize("content", [
    "text",
    (["text", "text"], [True]),
    ([b"a", b"b"], [2]),
    ([b"a", b"b", b"c"], [True]),
    ([b"a", b"b"], [True, False]),
    ([], []),
    ([b"a", b"b"], [np.float64(0.5)]),
    ([b"a", b"b"], [None]),
    ([b"a", b"b"], True),
    {"bins": [b"a", b"b"]},
    (np.zeros((2, 4, 4, 3), np.uint8), [True]),
    (b"ab", [True]),
])  # fmt: skip
def test_anything_else_is_no_verification_set(pickled, content: object) -> None:
    assert_refused(r"set\.bin", read_bin, pickled(content))


def test_damaged_files_and_images_are_named(tmp_path, faces) -> None:
    path = tmp_path / "a.bin"
    assert_refused(r"a\.bin cannot be read", read_bin, path)
    write_bin(path, [*faces[:3], b"junk"], [True] * 2)
    target = read_bin(path)
    assert target.decode(range(0, 3), (16, 16)).shape[0] == 3
    assert_refused("image 3: the image cannot be decoded", target.decode, range(1, 4), (16, 16))
    content = path.read_bytes()
    for length in range(0, len(content), 37):
        path.write_bytes(content[:length])
        assert_refused(r"a\.bin", read_bin, path)
