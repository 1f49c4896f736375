from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from data.decoding import decode_rgb
from data.drawn import face_set
from data.drawn.faces import Person, View, render
from data.images.image_set import DrawnImages
from data.records.record_set import RecordSet
from data.verification.bin_file import read_bin
from tests.support.sets import assert_refused, contents, images_of, write_files

# Mean, standard deviation, and that of neighbors' differences.
PHOTOGRAPHS = [[122.9, 41.9, 16.8], [146.3, 46.3, 14.7], [146.9, 67.8, 9.4], [112.1, 36.6, 14.4]]
SMALL = face_set.DrawnFaces(6, 4, (24, 20), seed=3)


def crc(arrays: Iterable[Any]) -> int:
    """Return a checksum of numbers to six digits, which is the same on every machine."""
    values = np.concatenate([np.asarray(array, float).ravel() for array in arrays])
    return zlib.crc32(np.round(values + 0.0, 6).tobytes())


def test_a_seed_draws_the_same_face_in_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's random numbers, and fixed-point coordinates before OpenCV draws them."""
    people = [Person(np.random.default_rng((0, number))) for number in range(100)]
    views = [View(np.random.default_rng((1, number))) for number in range(100)]
    assert crc(value for person in people for value in vars(person).values()) == 2020981468
    assert crc(value for view in views for value in vars(view).values()) == 2671922942

    drawn: list[Any] = []
    for name in ("fillPoly", "polylines"):
        monkeypatch.setattr(cv2, name, lambda image, points, *rest: drawn.extend((*points, *rest)))
    for person, view in zip(people, views):
        render(person, view, (112, 96), np.random.default_rng(0))
    assert crc(drawn) == 2665906231


def test_background_and_light_are_alike_in_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of each pixel: OpenCV rounds differently on different processors."""
    for name in ("fillPoly", "polylines"):
        monkeypatch.setattr(cv2, name, lambda *arguments: None)
    person, view = Person(np.random.default_rng(0)), View(np.random.default_rng(0))
    for number, expected in enumerate(PHOTOGRAPHS):
        image = render(person, view, (40, 48), np.random.default_rng(number)).astype(float)
        found = [image.mean(), image.std(), np.diff(image, axis=1).std()]
        assert found == pytest.approx(expected, abs=0.2)


# Mean and standard deviation of images 0 to 3, which are to be the same in every version.
@pytest.mark.parametrize(("part", "expected"), [
    ("training", [123.09, 51.36, 126.75, 52.96, 128.32, 47.83, 123.99, 50.5]),
    ("validation", [115.74, 64.54, 126.41, 54.48, 125.09, 62.51, 119.38, 60.89]),
])  # fmt: skip
def test_a_seed_draws_the_same_patterns_in_every_version(part: str, expected) -> None:
    dataset = DrawnImages(part, num_classes=3, count=600, shape=(16, 24, 3), seed=4)
    found = [dataset.decoded(number)[0].astype(float) for number in range(4)]
    values = [value for image in found for value in (image.mean(), image.std())]
    assert values == pytest.approx(expected, abs=0.05)
    assert (len(dataset), dataset.num_classes) == (600, 3)
    assert [dataset.decoded(number)[1] for number in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def ensure(root: Path, **changes: Any) -> RecordSet:
    return RecordSet(face_set.ensure(root, replace(SMALL, **changes)))


@pytest.fixture(autouse=True)
def few_pairs(monkeypatch) -> None:
    # Half as many pairs as in LFW; accuracies in the docs are measured on them.
    assert (face_set._VERIFICATION_IDENTITIES, face_set._VERIFICATION_IMAGES) == (100, 15)
    assert (face_set._VERIFICATION_PAIRS, face_set._FOLDS) == (3000, 10)
    monkeypatch.setattr(face_set, "_VERIFICATION_IDENTITIES", 5)
    monkeypatch.setattr(face_set, "_VERIFICATION_PAIRS", 40)


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "a" / "synthetic"


def images(records: RecordSet) -> list[bytes]:
    return [payload for payload, _ in images_of(records)]


def files(root: Path) -> dict[str, tuple[int, int]]:
    found = {path.name: path.stat() for path in root.iterdir()}
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in found.items()}


def test_the_set_is_in_the_real_format_and_made_once(root) -> None:
    records = ensure(root)
    assert (len(records), records.num_classes, records.image_size) == (24, 6, (24, 20))
    assert np.bincount(records.labels()).tolist() == [4] * 6
    assert decode_rgb(records.image(23)[0]).shape == (24, 20, 3)
    target = read_bin(root / "unseen.bin")
    assert (target.name, len(target), target.same.sum()) == ("unseen", 80, 20)
    before = files(root)
    assert {"train.idx.cache", "train.labels.cache"} <= {*before}
    ensure(root)
    assert before == files(root)


def test_the_seed_decides_and_another_choice_makes_the_set_anew(tmp_path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    first = images(ensure(one))
    assert first == images(ensure(two))
    shown = read_bin(one / "unseen.bin").images
    assert shown == read_bin(two / "unseen.bin").images
    # The people of the verification are those that follow the trained ones.
    later = images(ensure(two, identities=11))[24:]
    assert {*shown}.isdisjoint(first) and len({*shown} & {*later}) > 10
    assert all(a != b for a, b in zip(first, images(ensure(one, seed=4))))
    description = json.loads((one / "synthetic.json").read_text())
    made = files(one)["train.rec"]
    for changes, is_kept in (({}, True), ({"version": 1}, False)):
        (one / "synthetic.json").write_text(json.dumps({**description, **changes}))
        ensure(one, seed=4)
        assert (files(one)["train.rec"] == made) == is_kept
    (one / "synthetic.json").write_text("{}")
    assert_refused("one exists and is no synthetic set", ensure, one)


def before_step(monkeypatch, name: str, action) -> None:
    step = getattr(face_set, name)

    def do_both(*arguments: Any) -> None:
        monkeypatch.setattr(face_set, name, step)
        action()
        step(*arguments)

    monkeypatch.setattr(face_set, name, do_both)


@pytest.mark.parametrize("name", ["photos/me.jpg", "train.rec", "link"])
def test_other_files_in_the_folder_of_a_set_are_not_touched(name: str, root, tmp_path) -> None:
    """If another set is asked for; if the set itself is asked for, they do not matter."""
    ensure(root)
    mine = write_files(tmp_path / "mine", {"thesis.txt": b"years of work"})
    if name == "link":
        (root / name).symlink_to(tmp_path)
    else:
        write_files(root, {name: b"years of work"})
    before = contents(root), contents(mine)
    face_set.ensure(root, SMALL)
    assert_refused(f"{name.split('/')[0]} is not part of a synthetic set", ensure, root, seed=4)
    assert_refused("mine exists and is no synthetic set", ensure, mine)
    assert_refused("cannot be made", ensure, mine / "thesis.txt" / "synthetic")
    assert (contents(root), contents(mine)) == before
    assert not [*tmp_path.glob(".*.part")]


def test_files_that_come_while_another_set_is_drawn_stay(root, monkeypatch) -> None:
    ensure(root)
    thesis = root / "thesis.txt"
    before_step(monkeypatch, "_write_verification", lambda: thesis.write_text("years of work"))
    assert_refused("thesis.txt is not part of", ensure, root, seed=4)
    assert thesis.read_text() == "years of work"
