"""The command: each kind of input, broken images, ranks as threads and under horovodrun."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
from safetensors import safe_open

from backbones.model import Backbone
from data.verification.bin_file import write_bin
from evaluation import embed as command
from evaluation.features import normalized
from runtime.errors import DataError
from tests.evaluation.support import check_refusal, export_network, noise, png
from tests.support.launch import ROOT, finish, ranks
from tests.support.sets import assert_refused, pack_set
from tests.support.thread_world import run_ranks

SIDE = 32
# Eleven images of three people, one of them in a folder within a folder; sorted paths.
PEOPLE = [
    *(f"faces/ann/{n}.png" for n in range(5)), *(f"faces/bob/{n}.png" for n in range(4)),
    *("faces/team/cid/0.png", "faces/team/cid/1.png"),
]  # fmt: skip
SHARED = "--batch-size 4 faces --out shared"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_network(tmp_path_factory.mktemp("model") / "m", SIDE)


@pytest.fixture(autouse=True)
def _people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(PEOPLE):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(png(noise(number, SIDE)))


def features(model: Path, numbers: range | list[int], flip: bool = True) -> np.ndarray:
    images = np.stack([noise(number, SIDE).transpose(2, 0, 1) for number in numbers])
    backbone = Backbone.load(model, image_size=(SIDE, SIDE))
    return backbone.extract(images) + (backbone.extract(images[..., ::-1].copy()) if flip else 0)


def words_of(model: Path, words: str) -> list[str]:
    return f"--model {model},0 --image-size {SIDE} {SIDE} {words}".split()


def read(name: str) -> tuple[np.ndarray, list[list[str]]]:
    lines = Path(f"{name}.tsv").read_text().splitlines()
    return np.load(f"{name}.npy"), [line.split("\t") for line in lines]


def embed(model: Path, words: str) -> tuple[np.ndarray, list[list[str]]]:
    command.main(words_of(model, f"--batch-size 4 --out out {words}"))
    return read("out")


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_folders(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, index = embed(model, "faces")
    close(rows, normalized(features(model, range(11))))
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)
    labels = ["ann"] * 5 + ["bob"] * 4 + ["team/cid"] * 2
    assert index == [[str(n), *one] for n, one in enumerate(zip(PEOPLE, labels))]
    assert capsys.readouterr().out == "out.npy, out.tsv: 11 embeddings of 8\n"
    assert {path.name for path in Path().iterdir()} == {"faces", "out.npy", "out.tsv"}


def test_a_disk_without_room_shows_before_anything_is_embedded(model: Path, monkeypatch) -> None:
    reserve = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(os, "posix_fallocate", reserve)
    assert_refused("out.npy cannot be written: No space left", embed, model, "faces")
    assert reserve.call_args.args[1:] == (0, 128 + 11 * 8 * 4) and os.listdir() == ["faces"]


def test_raw_features_without_mirror_images(model: Path) -> None:
    images = " ".join(PEOPLE[:5])
    for more, flip in (("--raw --no-flip", False), ("--raw", True)):
        rows, index = embed(model, f"{images} {more}")
        close(rows, features(model, range(5), flip=flip))
        assert [line[2] for line in index] == [""] * 5


def test_sets_and_several_inputs(model: Path) -> None:
    pack_set(Path("set"), (png(noise(20 + n, SIDE)) for n in range(3)), (0, 0, 1), (SIDE, SIDE))
    write_bin("pairs.bin", [png(noise(n, SIDE)) for n in (30, 31, 30, 32)], [True, False])
    rows, index = embed(model, f"set pairs.bin {PEOPLE[6]} set/train.rec")
    close(rows, normalized(features(model, [20, 21, 22, 30, 31, 30, 32, 6, 20, 21, 22])))
    records = [["set/train.rec:1", "0"], ["set/train.rec:2", "0"], ["set/train.rec:3", "1"]]
    pairs = [[f"pairs.bin:{n}", ""] for n in range(4)]
    assert [line[1:] for line in index] == [*records, *pairs, [PEOPLE[6], ""], *records]


def test_broken_images(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(PEOPLE[2]).write_bytes(b"\x89PNG nothing")
    cv2.imwrite(PEOPLE[10], np.zeros((SIDE, SIDE + 8, 3), np.uint8))
    assert_refused("ann/2.png: the image .*repair or .*--skip-broken", embed, model, "faces")
    assert os.listdir() == ["faces"]
    rows, index = embed(model, "faces --skip-broken --safetensors")
    kept = [0, 1, 3, 4, 5, 6, 7, 8, 9]
    close(rows, normalized(features(model, kept)))
    assert [line[:2] for line in index] == [[str(n), PEOPLE[k]] for n, k in enumerate(kept)]
    printed = capsys.readouterr()
    first, second = (line for line in printed.err.splitlines() if line.startswith("left out: "))
    assert PEOPLE[2] in first
    assert second.endswith("1.png has 32 x 40 pixels instead of the network's 32 x 32")
    assert "9 embeddings of 8, without 2 that cannot be embedded" in printed.out
    with safe_open("out.safetensors", "np") as tensors:
        assert list(tensors.keys()) == ["embeddings"]
        np.testing.assert_array_equal(tensors.get_tensor("embeddings"), rows)
    assert len(embed(model, f"{PEOPLE[10]} --resize")[0]) == 1
    assert not Path("out.safetensors").exists(), "it was that of other rows"
    words = f"{PEOPLE[2]} --skip-broken"
    assert_refused("none of the 1 images can be embedded", embed, model, words)
    assert len(np.load("out.npy")) == 1, "the former file stays"


@pytest.mark.parametrize("size", [3, 13])
def test_ranks_share_the_images(model: Path, size: int, capsys) -> None:
    """Rank 0 alone says what is left out."""
    Path(PEOPLE[2]).write_bytes(b"nothing")
    Path("faces/bob/a.heic").touch()
    expected, index = embed(model, "faces --skip-broken")
    capsys.readouterr()
    words = words_of(model, f"{SHARED} --skip-broken")
    run_ranks(size, lambda world: command.main(words, world))
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("faces: ")]
    assert said.startswith("faces: left out 1 files that are not images, or of formats")
    rows, found = read("shared")
    close(rows, expected)
    assert found == index


def test_ranks_end_together_at_a_broken_image(model: Path) -> None:
    def refusal(world: Any) -> str:
        with pytest.raises(DataError) as caught:
            command.main(words_of(model, SHARED), world)
        return str(caught.value)

    Path(PEOPLE[5]).write_bytes(b"nothing")
    first, second = run_ranks(2, refusal)
    assert first == "another rank cannot embed an image, and says which"
    assert "bob/0.png: the image" in second and os.listdir() == ["faces"]


@pytest.mark.thorough
@pytest.mark.launcher
def test_two_ranks_under_horovodrun(model: Path) -> None:
    """And rank 1 cannot read an image when rank 0 waits for it."""
    program = [sys.executable, "-m", "evaluation.embed", *words_of(model, SHARED)]
    command = [*ranks("--gloo", 2), *program]
    finish(*command, folder=Path.cwd(), PYTHONPATH=str(ROOT))
    close(np.load("shared.npy"), embed(model, "faces")[0])
    Path("shared.npy").unlink()
    Path(PEOPLE[10]).write_bytes(b"nothing")
    done = finish(*command, folder=Path.cwd(), status=None, PYTHONPATH=str(ROOT))
    assert done.returncode != 0 and "cid/1.png: the image" in done.stdout + done.stderr
    assert not list(Path().glob("*shared*.npy"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model m,0 --out x gone", "gone does not exist; name images"),
        ("--model m,0 --out x empty", "empty holds no images"),
        ("--model m,0 --out x faces", "m-symbol.json"),
        ("--model m.onnx --dtype bfloat16 --out x faces", "--dtype bfloat16 is for n"),
        ("MODEL --out faces/ann/0.png/x faces", "cannot be written: .*; choose another"),
        ("--image_size 3,112,112 --batch_size 8", "type `--image-size 112 112`"),
        ("--gpu 0", "^--gpu is .* leave it out; a GPU that this process sees is used"),
    ],
)
def test_mistakes_are_one_line(model: Path, words: str, message: str) -> None:
    Path("empty").mkdir()
    words = words.replace("MODEL", f"--model {model},0 --image-size {SIDE} {SIDE}")
    check_refusal(command.main, words.split(), message)
