"""Two images: cosine, answer, and a threshold from the pairs of two people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from backbones.model import Backbone
from data.align.similarity import TEMPLATE
from data.verification.bin_file import read_bin, write_bin
from evaluation import compare
from evaluation.compare import different_cosines, threshold_at
from evaluation.features import normalized
from evaluation.network import FaceNetwork
from runtime.errors import DataError
from tests.evaluation.support import check_refusal, export_network, noise, png
from tests.evaluation.verification.test_verification import FakeTarget, corner


def draw(number: int, side: int = 32) -> np.ndarray:
    return cv2.resize(noise(number, 4), (side, side))


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two images of noise, twelve pairs, and a network for them."""
    monkeypatch.chdir(tmp_path)
    images = [png(draw(number)) for number in range(24)]
    write_bin("pairs.bin", images, [pair % 3 == 0 for pair in range(12)])
    for name, image in zip("ab", images):
        Path(f"{name}.png").write_bytes(image)
    export_network(Path("m"), 32)
    return ["a.png", "b.png", "--model", "m,0", "--image-size", "32", "32"]


def test_threshold_by_hand() -> None:
    cosines = np.array([0.1, 0.9, 0.30005, 0.2, 0.5] + [0.0] * 5)
    # In the middle between the last that is accepted and the first that is not.
    found = [threshold_at(far, cosines, "lfw") for far in (0.1, 0.2, 0.29, 0.3)]
    assert found == [0.7, 0.4, 0.4, 0.25]
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
    images = np.stack([draw(n).transpose(2, 0, 1) for n in range(2)])
    extract = Backbone.load("m", image_size=(32, 32)).extract
    first, second = normalized(extract(images) + extract(images[..., ::-1].copy()))
    cosine = float(first @ second)
    for threshold, answer in ((cosine - 0.01, "same"), (cosine + 0.01, "not the same")):
        compare.main([*words, "--threshold", f"{threshold:.4f}"])
        found, _, said = capsys.readouterr().out.splitlines()[0].partition(": ")
        assert float(found.split()[1]) == pytest.approx(cosine, abs=2e-3) and said == answer


def test_a_threshold_from_a_set_and_its_rate(words, capsys) -> None:
    def second_line(*more: str) -> str:
        compare.main([*words, "--target", "pairs.bin", *more])
        return capsys.readouterr().out.splitlines()[1]

    network = FaceNetwork(Backbone.load("m", image_size=(32, 32)).extract, (32, 32), "m")
    cosines = different_cosines(network, read_bin("pairs.bin"), 8, flip=True)
    line = second_line("--far", "0.25")
    threshold = float(line.split()[1].rstrip(","))
    assert threshold == pytest.approx(threshold_at(0.25, cosines, ""), abs=2e-3)
    assert line.endswith("FAR 0.25: it accepts 2 of the 8 pairs of two people in pairs")
    assert second_line("--threshold", line.split()[1].rstrip(",")) == line
    assert "accepts 8 of the 8 pairs" in second_line("--threshold", "-1")


def test_faces_are_cut_out(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.png").write_bytes(png(draw(0, 160)))
    export_network(Path("m"))
    Path("points.txt").write_text(f"a.png {' '.join(map(str, TEMPLATE.ravel()))}\n")
    line = ["a.png", "a.png", "--model", "m,0", "--threshold", "0.5"]
    compare.main([*line, "--align", "points.txt"])
    assert capsys.readouterr().out.startswith("cosine 1.0000: same")
    check_refusal(compare.main, line, "a.png has 160 x 160 pixels .*; cut the faces out with")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "nothing says which cosine is enough: give --threshold"),
        ("--far 0.1 --threshold 0", "--far takes the threshold from --ta"),
        ("--far 1 --target pairs.bin", "--far 1 is no share"),
        ("--threshold 2", "--threshold 2 is no cosine"),
        ("--threshold 0 --align points.txt", "cuts out faces of 112 x 112"),
        ("--target pairs.bin", "pairs has 8 pairs of two people, of which 0.001"),
        ("--target gone.bin", "gone.bin cannot be read"),
    ],
)
def test_mistakes_are_one_line(words, options: str, message: str) -> None:
    check_refusal(compare.main, [*words, *options.split()], message)
