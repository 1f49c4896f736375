"""Images of another size than their set, as MXNet and InsightFace's loader resize them."""

from __future__ import annotations

import importlib.util
import os
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from data.batches.face_loader import FaceLoader
from data.decoding import decode_rgb
from data.options import FaceDataOptions
from data.records.record_set import RecordSet
from data.records.recordio import BrokenRecordError
from data.resizing import bring_to
from tests.support.foreign_records import face2rec2, write_records

SMALL = (112, 112)


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 3), None, 0, 255, cv2.NORM_MINMAX)


def kinds(pixels: np.ndarray) -> dict[str, bytes]:
    """Encode an image in all ways in which sets have them."""
    gray = cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
    cmyk = BytesIO()
    image = pytest.importorskip("PIL.Image")
    image.fromarray(pixels[..., ::-1]).convert("CMYK").save(cmyk, "JPEG", quality=95)
    return {
        "jpeg": cv2.imencode(".jpg", pixels)[1].tobytes(),
        "gray jpeg": cv2.imencode(".jpg", gray)[1].tobytes(),
        "png": cv2.imencode(".png", pixels)[1].tobytes(),
        "gray png": cv2.imencode(".png", gray)[1].tobytes(),
        "transparent png": cv2.imencode(".png", np.dstack([pixels, gray]))[1].tobytes(),
        "16-bit png": cv2.imencode(".png", pixels.astype(np.uint16) * 257)[1].tobytes(),
        "cmyk jpeg": cmyk.getvalue(),
    }


def test_sizes_are_those_of_mxnet() -> None:
    """The two differ by roundings: MXNet has an OpenCV of its own."""
    mx = pytest.importorskip("mxnet")
    for size in ((250, 250), (96, 96), (113, 113), (250, 249), (249, 250), (2000, 2000)):
        pixels = smooth(*size)
        expected = mx.image.resize_short(mx.nd.array(pixels, dtype="uint8"), 112).asnumpy()
        assert expected.shape == (112, 112, 3)
        difference = np.abs(bring_to(pixels, SMALL).astype(int) - expected)
        assert difference.max() <= 1 and (difference > 0).mean() < 0.1, size


def test_images_of_other_shapes_are_refused_and_of_the_right_size_kept() -> None:
    for size, wanted in (
        ((250, 300), SMALL), (SMALL, (112, 96)), ((1, 4000), (8, 8)), ((224, 224), (112, 96)),
    ):  # fmt: skip
        message = f"{size[0]} x {size[1]} pixels, which is another"
        with pytest.raises(BrokenRecordError, match=message):
            bring_to(np.zeros((*size, 3), np.uint8), wanted)
    pixels = smooth(*SMALL)
    assert bring_to(pixels, SMALL) is pixels
    for size in ((224, 192), (56, 48)):
        assert bring_to(smooth(*size), (112, 96)).shape == (112, 96, 3)


def _original_iterator(path: Path) -> Any:
    """Open a set by the iterator of InsightFace's partial_fc/mxnet."""
    originals = os.environ.get("TOOLKIT_ORIGINALS")
    if originals is None:
        pytest.skip("TOOLKIT_ORIGINALS names no folder with the original programs")
    source = Path(originals, "deepinsight+insightface/recognition/partial_fc/mxnet/image_iter.py")
    spec = importlib.util.spec_from_file_location("original_image_iter", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.FaceImageIter(7, (3, *SMALL), path_imgrec=str(path), shuffle=True)


def test_a_set_of_many_sizes_is_read_as_by_the_original(tmp_path: Path) -> None:
    """Unsorted, in its own order, of every kind of image: the same pixels have the same classes."""
    encoded = [
        content
        for number, side in enumerate([250, 112, 96, 160])
        for content in kinds(smooth(side, side, seed=number)).values()
    ]
    labels = [number * 5 % 4 for number in range(len(encoded))]
    write_records(tmp_path, face2rec2(labels, encoded), description="4,112,112")
    expected: list[tuple[int, np.ndarray]] = []
    iterator = _original_iterator(tmp_path / "train.rec")
    for _ in range(len(encoded) // 7):
        batch = iterator.next()
        classes = batch.label[0].asnumpy().astype(int).tolist()
        expected += zip(classes, batch.data[0].asnumpy())
    options = FaceDataOptions(batch_size=7, threads=2)
    records = RecordSet(tmp_path)
    with FaceLoader(records, options, rank=0, world_size=1, seed=0, mirror=False) as loader:
        batches = [next(loader.batches(update)) for update in range(loader.updates_per_epoch)]
    found = [
        (int(label), image.astype(np.float32))
        for batch in batches
        for label, image in zip(batch.labels, batch.images)
    ]
    assert len(found) == len(expected) == len(encoded) and not loader.bad_records
    for label, image in expected:
        nearest = min(np.abs(image - other).max() for own, other in found if own == label)
        assert nearest <= 2


def test_kinds_of_images() -> None:
    pixels = smooth(64, 64)
    straight = cv2.resize(pixels[..., ::-1], (32, 32), interpolation=cv2.INTER_CUBIC).astype(int)
    for name, content in kinds(pixels).items():
        image = bring_to(decode_rgb(content), (32, 32))
        assert image.shape == (32, 32, 3) and image.dtype == np.uint8
        if name in ("jpeg", "png", "16-bit png", "transparent png"):
            assert np.abs(image - straight).mean() < 4, name
