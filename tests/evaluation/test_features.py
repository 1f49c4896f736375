"""What every command does that uses a network: it divides the threads, and refuses a network that
gives no finite embeddings, since such a one is as good as chance: no distance is below a threshold.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from backbones.graph.parameter_file import read_parameters, write_parameters
from data.records.writer import RecordWriter
from data.verification.bin_file import write_bin
from evaluation import compare
from evaluation.clean import __main__ as clean
from evaluation.embed import __main__ as embed
from evaluation.export import __main__ as export
from evaluation.features import check_finite, features_of_views, sums_of_views
from evaluation.ijb import __main__ as ijb
from evaluation.verification import __main__ as verification
from runtime.errors import DataError
from runtime.mxnet import mx
from tests.evaluation.support import check_refusal, export_network, noise, png
from tests.support.ijb_set import write_set

ROOT = Path(__file__).parents[2]
SIDE = 112
COMMANDS: dict[str, tuple[Callable[[list[str]], None], str]] = {
    "verification": (verification.main, "--target pairs.bin"),
    "compare": (compare.main, "0.png 1.png --threshold 0.3"),
    "compare with a set": (compare.main, "1.png 2.png --target pairs.bin --far=.2"),
    "embed": (embed.main, "1.png 0.png --out rows"),
    "ijb": (ijb.main, "IJBC --out {out}"),
    "clean": (clean.main, "faces"),
    "export": (export.main, "--output made.onnx"),
    "export to torch": (export.main, "--format torch --output made.safetensors"),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, of which 0.png is brighter than all others, sets of them, and six networks.

    ``huge`` has finite weights whose products are not finite, ``some`` gives numbers for all but
    bright images, ``maps`` ends with a Convolution, ``number`` gives one number per image.
    """
    folder = tmp_path_factory.mktemp("inputs")
    images = [png(noise(number, SIDE) // 4 * 3) for number in range(24)]
    images[0] = png(np.full((SIDE, SIDE, 3), 255, np.uint8))
    for number, image in enumerate(images[:3]):
        (folder / f"{number}.png").write_bytes(image)
    write_bin(folder / "pairs.bin", images, [pair % 3 == 1 for pair in range(12)])
    with RecordWriter(folder / "faces", image_size=(SIDE, SIDE)) as writer:
        for number, image in enumerate(images):
            writer.write(image, number // 4)
    write_set(folder / "IJBC", images=True)
    network = mx.sym.load(f"{export_network(folder / 'm')}-symbol.json")
    found = read_parameters(folder / "m-0000.params")
    x = mx.sym.var("data")
    means = mx.sym.Pooling(x, global_pool=True, kernel=(1, 1), pool_type="avg")
    limited = mx.sym.sqrt(242.0 - mx.sym.max(x, axis=(1, 2, 3), keepdims=True))
    for name, symbol, key, value in (
        ("nan", network, "arg:stage2_conv0_weight", np.nan),
        # Before it an activation makes numbers of what is none.
        ("huge", network, "arg:pre_fc1_weight", 1e38),
        ("zero", network, "", 0),
        ("some", mx.sym.Flatten(mx.sym.broadcast_add(means, limited), name="fc1"), "none", 0),
        ("maps", mx.sym.Convolution(means, kernel=(1, 1), num_filter=8, name="fc1"), "none", 0),
        ("number", mx.sym.sum(mx.sym.Flatten(x), axis=1, name="fc1"), "none", 0),
    ):
        arrays = {
            one: np.full_like(array, value) if one.startswith(key) else array
            for one, array in found.items()
        }
        with (folder / f"{name}-0000.params").open("wb") as file:
            write_parameters(file, arrays)
        symbol.save(f"{folder}/{name}-symbol.json")
    return folder


COMPUTING = "verification, compare, embed, clean, ijb"
NOT_FINITE = "the network gives embeddings that are not finite"
MISTAKES = [
    ("nan", "nan-0000.params: 'stage2_conv0_weight' has values", "clean, export to torch"),
    ("maps", r"maps-symbol.json gives \[2, 8, 1, 1\] for two images", "embed, export"),
    ("number", r"number-symbol.json gives \[2\] for two images; its output has to", "ijb"),
    ("m" * 300, "-symbol.json (does not exist|cannot be read: File name too)", "compare"),
    ("huge", NOT_FINITE, f"{COMPUTING}, compare with a set, export"),
    ("zero", "the network gives embeddings of length 0 for all", COMPUTING),
    ("some", rf"{NOT_FINITE} \([12] of \d+\)", "verification, compare, embed, clean"),
    # The images of IJB are bright, all of them.
    ("some", rf"{NOT_FINITE} \(\d+ of \d+\)", "ijb"),
]


@pytest.mark.parametrize(
    ("model", "message", "name"),
    [(*mistake, name) for *mistake, names in MISTAKES for name in names.split(", ")],
)
def test_a_network_without_a_finite_row_per_image(
    inputs: Path, model: str, message: str, name: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(inputs)
    main, words = COMMANDS[name]
    words = f"--model {model},0 {words.format(out=tmp_path / 'out')}"
    check_refusal(main, words.split(), message)
    assert "accuracy" not in capsys.readouterr().out
    assert not list(inputs.glob("rows*")) and not list(inputs.glob("made*"))


@pytest.mark.parametrize("name", ["verification", "embed", "ijb"])
def test_threads_are_divided_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before MXNet reads how many there are."""
    main, words = COMMANDS[name]
    monkeypatch.setattr(sys.modules[main.__module__], "prepare_lanes", Mock(side_effect=EOFError))
    with pytest.raises(EOFError):
        main(["--model", "none,0", *words.split()])


def test_nothing_before_imports_mxnet_and_nothing_else_onnx() -> None:
    """In a process where no test has done so."""
    names = ("verification", "embed", "ijb", "export")
    programs = [f"evaluation.{name}.__main__" for name in names]
    code = (
        f"import sys, {', '.join(programs)}; "
        "assert not {'mxnet', 'onnx', 'onnxruntime', 'torch'} & sys.modules.keys(); "
        "import train, classify, backbones.model, training.verifier; "
        "assert not {'onnx', 'onnxruntime', 'torch'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, check=True, timeout=120)


def test_numbers_whose_length_is_too_large() -> None:
    """A unit vector of it would be zero."""
    check_finite(np.full((2, 4), 1e18, np.float32))
    for value in (1e30, np.inf, np.nan):
        with pytest.raises(DataError, match=r"\(1 of 2\)"):
            check_finite(np.array([[1, 2], [value, 1]], np.float32))


def test_what_fills_a_batch_up_does_not_count() -> None:
    def extract(images: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return (images[:, :, 0, 0] / images.max(axis=(1, 2, 3))[:, None]).astype(np.float32)

    images = np.full((2, 3, 4, 4), 7, np.uint8)
    views = features_of_views(extract, images, 5, flip=True)
    np.testing.assert_array_equal(views, np.ones((2, 2, 3)))
    assert sums_of_views(extract, images, 5, flip=True)[0].tolist() == [[2, 2, 2]] * 2
    with pytest.raises(DataError, match=r"\(6 of 6\)"):
        features_of_views(extract, np.zeros((3, 3, 4, 4), np.uint8), 5, flip=True)
