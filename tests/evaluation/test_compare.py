"""Two images: cosine, answer, and a threshold from the pairs of two people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from backbones.model import Backbone
from data.align.similarity import TEMPLATE
from data.verification.bin_file import write_bin
from evaluation import compare
from evaluation.compare import different_cosines, threshold_at
from evaluation.features import normalized
from evaluation.network import FaceNetwork
from runtime.errors import ConfigError, DataError
from tests.evaluation.untrained import export_network
from tests.evaluation.verification.test_verification import FakeTarget, corner

SIZE = ["--image-size", "32", "32"]


def draw(number: int, side: int = 32) -> np.ndarray:
    small = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return cv2.resize(small, (side, side))


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two images of noise, twelve pairs, and a network for them."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("ab"):
        cv2.imwrite(f"{name}.png", draw(number))
    images = [cv2.imencode(".png", draw(n))[1].tobytes() for n in range(24)]
    write_bin("pairs.bin", images, [pair % 3 == 0 for pair in range(12)])
    export_network(tmp_path / "m", 32)
    return ["a.png", "b.png", "--model", "m,0", *SIZE]


def test_threshold_by_hand() -> None:
    cosines = np.array([0.1, 0.9, 0.30005, 0.2, 0.5] + [0.0] * 5)
    # In the middle between the last that is accepted and the first that is not.
    assert threshold_at(0.1, cosines, "lfw") == 0.7
    assert threshold_at(0.2, cosines, "lfw") == threshold_at(0.29, cosines, "lfw") == 0.4
    assert threshold_at(0.3, cosines, "lfw") == 0.25
    with pytest.raises(DataError, match="lfw has 10 pairs of two people, .* --far 0.1 or more"):
        threshold_at(0.09, cosines, "lfw")
    # The share that the message names is enough.
    many = np.linspace(0, 1, 3000)
    with pytest.raises(DataError, match="--far 0.00034 or more"):
        threshold_at(0.00033, many, "lfw")
    assert threshold_at(0.00034, many, "lfw") < 1


def test_cosines_are_those_of_the_pairs_of_two_people() -> None:
    target: Any = FakeTarget(pairs=20)
    network = FaceNetwork(corner, (4, 4), "corner")
    found = different_cosines(network, target, 3, flip=False)
    rows = normalized(corner(target.images)).astype(np.float64)
    expected = (rows[0::2] * rows[1::2]).sum(axis=1)[~target.same]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    target.same[:] = True
    with pytest.raises(DataError, match="'fake' has no pair of two people"):
        different_cosines(network, target, 3, flip=False)


def test_an_image_with_itself_and_with_another(words, capsys) -> None:
    compare.main(["a.png", "a.png", *words[2:], "--threshold", "0.9999"])
    assert capsys.readouterr().out.splitlines() == [
        "cosine 1.0000: same",
        "threshold 0.9999, as given; --target FILE.bin measures its FAR",
    ]
    images = np.stack([draw(n)[..., ::-1].transpose(2, 0, 1) for n in range(2)])
    extract = Backbone.load("m", image_size=(32, 32)).extract
    first, second = normalized(extract(images) + extract(images[..., ::-1].copy()))
    cosine = float(first @ second)
    for threshold, answer in ((cosine - 0.01, "same"), (cosine + 0.01, "not the same")):
        compare.main([*words, "--threshold", f"{threshold:.4f}"])
        found, _, said = capsys.readouterr().out.splitlines()[0].partition(": ")
        assert float(found.split()[1]) == pytest.approx(cosine, abs=2e-3) and said == answer


def test_a_threshold_from_a_set_and_its_rate(words, capsys) -> None:
    compare.main([*words, "--target", "pairs.bin", "--far", "0.25"])
    line = capsys.readouterr().out.splitlines()[1]
    assert line.endswith("FAR 0.25: it accepts 2 of the 8 pairs of two people in pairs")
    threshold = line.split()[1].rstrip(",")
    compare.main([*words, "--target", "pairs.bin", "--threshold", threshold])
    assert capsys.readouterr().out.splitlines()[1] == line
    compare.main([*words, "--target", "pairs.bin", "--threshold", "-1"])
    assert "accepts 8 of the 8 pairs" in capsys.readouterr().out


def test_faces_are_cut_out(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    cv2.imwrite("a.png", draw(0, 160))
    export_network(tmp_path / "m")
    (tmp_path / "points.txt").write_text(f"a.png {' '.join(map(str, TEMPLATE.ravel()))}\n")
    line = ["a.png", "a.png", "--model", "m,0", "--threshold", "0.5"]
    compare.main([*line, "--align", "points.txt"])
    assert capsys.readouterr().out.startswith("cosine 1.0000: same")
    with pytest.raises(DataError, match="a.png has 160 x 160 pixels .*; cut the faces out with"):
        compare.main(line)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ("", ConfigError, "nothing says which cosine is enough: give --threshold"),
        ("--far 0.1 --threshold 0", ConfigError, "--far takes the threshold from --ta"),
        ("--far 1 --target pairs.bin", ConfigError, "--far 1 is no share"),
        ("--threshold 2", ConfigError, "--threshold 2 is no cosine"),
        ("--threshold 0 --align points.txt", ConfigError, "cuts out faces of 112 x 112"),
        ("--target pairs.bin", DataError, "pairs has 8 pairs of two people, of which 0.001"),
        ("--target gone.bin", DataError, "gone.bin cannot be read"),
    ],
)
def test_mistakes_are_one_line(words, options: str, error, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        compare.main([*words, *options.split()])
    assert "\n" not in str(caught.value)
