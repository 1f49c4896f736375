from __future__ import annotations

import re
import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Optional

import cv2
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import libjpeg
from data.batches.face_loader import FaceLoader
from data.decoding import Image, decode_rgb
from data.options import FaceDataOptions
from data.records.record_set import RecordSet
from data.records.writer import RecordWriter
from tests.support.jpegs import as_jpeg, decode_bytes, jpeg_of_scans
from tests.support.oriented_images import SEEN

COLORS = np.random.default_rng(0).integers(0, 256, (21, 34, 3), np.uint8)
_SAMPLINGS = (
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
)


def decoded(payload: bytes, height: int, width: int) -> Optional[Image]:
    """An image in memory, between two others that have to stay as they are."""
    images = np.full((3, height, width, 3), 77, np.uint8)
    failed = decode_bytes([payload], images[1:2])
    assert (images[[0, 2]] == 77).all()
    return None if failed else images[1]


@given(
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    quality=st.integers(1, 100),
    sampling=st.sampled_from(_SAMPLINGS),
    progressive=st.booleans(),
    interval=st.sampled_from([0, 1, 3]),
    is_gray=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_pixels_are_those_of_opencv(
    size, quality, sampling, progressive, interval, is_gray, seed
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (*size, 1 if is_gray else 3), np.uint8)
    if seed % 2:
        image = cv2.blur(image, (5, 5))
    payload = as_jpeg(
        image,
        *(cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling),
        *(cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive), cv2.IMWRITE_JPEG_RST_INTERVAL, interval),
    )
    found = decoded(payload, *size)
    assert found is not None
    np.testing.assert_array_equal(found, decode_rgb(payload))


def test_what_is_cut_off_of_another_size_or_no_jpeg() -> None:
    payload = as_jpeg(COLORS)
    for share in (0.1, 0.5, 0.99):
        assert decoded(payload[: int(share * len(payload))], *COLORS.shape[:2]) is None
    for height, width in ((24, 35), (24, 37), (23, 36), (36, 24), (1, 1)):
        assert decoded(as_jpeg(SEEN), height, width) is None
    for junk in (b"", b"\0", b"\xff\xd8", b"\xff\xd8\xff\xd9", b"\x89PNG" * 9):
        assert decoded(junk, 4, 4) is None
    # ``decode_rgb`` refuses this one; here it would take as long as each of its scans takes.
    assert decoded(jpeg_of_scans(101), 16, 16) is None


def test_stored_as_rgb() -> None:
    """By a segment of Adobe that says so, without that of JFIF, which says YCbCr."""
    whole = as_jpeg(SEEN)
    (length,) = struct.unpack_from(">H", whole, 4)
    segment = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\0"
    payload = whole[:2] + segment + whole[4 + length :]
    found = decoded(payload, *SEEN.shape[:2])
    assert found is not None
    np.testing.assert_array_equal(found, decode_rgb(payload))
    assert (found != decode_rgb(whole)).any()


def test_other_colors_are_left_to_opencv() -> None:
    """Four channels: the frame and the scan of a gray image name its channel four times."""
    gray = as_jpeg(np.full((8, 8), 130, np.uint8))
    frame, scan = gray.index(b"\xff\xc0"), gray.index(b"\xff\xda")
    channels = b"".join(bytes([number, 0x11, 0]) for number in range(1, 5))
    tables = b"".join(bytes([number, 0]) for number in range(1, 5))
    payload = (
        gray[:frame]
        + struct.pack(">HHBHHB", 0xFFC0, 20, 8, 8, 8, 4)
        + channels
        + gray[frame + 13 : scan]
        + struct.pack(">HHB", 0xFFDA, 14, 4)
        + tables
        + gray[scan + 7 : -2] * 4
        + gray[-2:]
    )
    assert decoded(payload, 8, 8) is None


def test_what_claims_to_be_huge_gets_no_memory() -> None:
    payload = as_jpeg(SEEN)
    place = payload.index(b"\xff\xc0") + 5
    huge = payload[:place] + struct.pack(">HH", 60000, 60000) + payload[place + 4 :]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert decoded(huge, *SEEN.shape[:2]) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 12


def test_what_is_not_decoded_keeps_no_other_from_its_image() -> None:
    whole, other = as_jpeg(SEEN), as_jpeg(COLORS)
    images = np.full((8, *SEEN.shape), 77, np.uint8)
    payloads = [whole, None, whole, whole[:100], other, whole, None]
    assert decode_bytes(payloads, images) == [1, 3, 4, 6]
    for place in (0, 2, 5):
        np.testing.assert_array_equal(images[place], decode_rgb(whole))
    assert (images[1] == 77).all() and (images[7] == 77).all()


@pytest.mark.parametrize("marker", [b"\xff\xdb", b"\xff\xc4"], ids=["quantization", "Huffman"])
def test_a_table_that_is_missing_is_not_that_of_the_image_before(marker: bytes) -> None:
    whole = as_jpeg(SEEN, cv2.IMWRITE_JPEG_OPTIMIZE, 1)
    place = whole.index(marker)
    (length,) = struct.unpack_from(">H", whole, place + 2)
    lacking = whole[:place] + whole[place + 2 + length :]
    images = np.zeros((3, *SEEN.shape), np.uint8)
    assert decode_bytes([whole, lacking, whole], images) == [1]
    np.testing.assert_array_equal(images[2], images[0])


def damaged(seed: int, count: int) -> Iterator[bytes]:
    """JPEGs of COLORS' size of which some bytes, most of them of the header, are wrong."""
    rng = np.random.default_rng(seed)
    whole = [as_jpeg(COLORS, cv2.IMWRITE_JPEG_PROGRESSIVE, progressive) for progressive in (0, 1)]
    for number in range(count):
        content = bytearray(whole[number % 2])
        for _ in range(rng.integers(1, 4)):
            last = len(content) if rng.random() < 0.3 else 650
            content[rng.integers(2, last)] = rng.integers(256)
        yield bytes(content)


def test_what_is_damaged_has_the_pixels_of_opencv_or_none() -> None:
    """Many in one call, so that one could leave something behind for the next."""
    payloads, at_once, decoded_count = list(damaged(1, 3000)), 20, 0
    for first in range(0, len(payloads), at_once):
        few = payloads[first : first + at_once]
        images = np.full((at_once + 2, *COLORS.shape), 77, np.uint8)
        failed = decode_bytes(few, images[1:-1])
        for place in set(range(at_once)) - set(failed):
            np.testing.assert_array_equal(images[1 + place], decode_rgb(few[place]))
        assert (images[[0, -1]] == 77).all()
        decoded_count += at_once - len(failed)
    assert 300 < decoded_count < 2700


def test_threads_decode_damaged_and_whole_images_at_once_and_keep_no_memory() -> None:
    whole = as_jpeg(COLORS)
    expected = decode_rgb(whole)

    def decode(seed: int) -> int:
        images, wrong = np.zeros((4, *COLORS.shape), np.uint8), 0
        for payload in damaged(seed, 500):
            failed = decode_bytes([payload, whole, payload[:300], whole], images)
            wrong += [place for place in failed if place] != [2]
            wrong += not (images[[1, 3]] == expected).all()
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(decode, range(4))) == [0] * 4
    images = np.zeros((1, *COLORS.shape), np.uint8)
    payloads = list(damaged(2, 200))
    for times in (5, 50):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for payload in payloads * times:
            decode_bytes([payload], images)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 11


def test_the_compiler_knows_that_a_mark_is_reached_twice() -> None:
    """Without it the jump works as well, until a compiler keeps something in a register."""
    # Anew, since of what comes from a cache there is no code to look at.
    function = numba.njit(libjpeg._is_decoded.py_func)
    function.compile((numba.uint64,) * 4 + (numba.int64,) * 2)
    (code,) = function.inspect_llvm().values()
    (declared,) = re.findall(r"declare .*@_setjmp\(.*\).* #(\d+)", code)
    assert re.search(rf"attributes #{declared} = .*returns_twice", code)


@pytest.fixture
def forgotten() -> Iterator[None]:
    """As in a new process, before it has looked for the library."""
    libjpeg._find_library.cache_clear()
    yield
    libjpeg._find_library.cache_clear()


def no_package(name: str) -> None:
    raise metadata.PackageNotFoundError(name)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("module", "name", "other", "reason"),
    [
        (metadata, "files", no_package, "there is none"),
        (metadata, "files", lambda name: None, "there is none"),
        (libjpeg, "_library_file", lambda: Path(cv2.__file__), "invalid ELF header"),
        (libjpeg, "_library_file", lambda: Path(zlib.__file__), "undefined symbol"),
        (libjpeg, "_library_file", lambda: Path("missing"), "No such file"),
        (libjpeg, "_fits", lambda memory: False, "than that of version 62"),
    ],
    ids=["no Pillow", "no list", "no library", "another library", "no file", "another version"],
)
def test_without_the_library_opencv_decodes_after_one_warning(
    module, name, other, reason, monkeypatch, caplog, tmp_path
) -> None:
    with RecordWriter(tmp_path, image_size=(24, 36)) as writer:
        for shade in range(4):
            writer.write(as_jpeg(np.full(SEEN.shape, 50 * shade, np.uint8)), shade)

    def batch() -> tuple[np.ndarray, np.ndarray]:
        options = FaceDataOptions(batch_size=4, threads=2)
        with FaceLoader(RecordSet(tmp_path), options, rank=0, world_size=1, seed=1) as loader:
            found = next(loader.batches())
        return found.images, found.labels

    expected = batch()
    libjpeg._find_library.cache_clear()
    monkeypatch.setattr(module, name, other)
    for found, right in zip(batch(), expected):
        np.testing.assert_array_equal(found, right)
    (warning,) = caplog.messages
    assert "images are decoded one by one" in warning and reason in warning


_BESIDE_ANOTHER = """
import ctypes, sys
import mxnet

# As Horovod does it: MXNet's functions for all libraries that are loaded from now on.
ctypes.CDLL(mxnet.libinfo.find_lib_path()[0], ctypes.RTLD_GLOBAL)
if sys.argv[1] == "loaded":
    from PIL import _imaging
import cv2, numpy as np
from tests.support.jpegs import as_jpeg, decode_bytes

pixels = np.random.default_rng(1).integers(0, 256, (40, 30, 3), np.uint8)
images = np.zeros((2, 40, 30, 3), np.uint8)
payload = as_jpeg(pixels)
assert decode_bytes([payload, payload[:200]], images) == [1]
assert (images[0] == cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_COLOR_RGB)).all()
print("decoded")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("pillow", ["loaded", "not loaded"])
def test_beside_the_libjpeg_of_mxnet(pillow: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BESIDE_ANOTHER, pillow],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "decoded\n", done.stderr
