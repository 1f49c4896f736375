"""Features that are not finite are refused in one line, by every command that uses a network.

Otherwise such a network is as good as chance: no distance is smaller than a threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cv2
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
from runtime.untrusted.onnx_model import import_onnx
from tests.evaluation.untrained import export_network
from tests.support.ijb_set import write_set

SIDE = 112
COMMANDS: dict[str, tuple[Callable[[list[str]], None], list[str]]] = {
    "verification": (verification.main, ["--target", "pairs.bin"]),
    "compare": (compare.main, ["0.png", "1.png", "--threshold", "0.3"]),
    "compare with a set": (compare.main, ["1.png", "2.png", "--target", "pairs.bin", "--far=.2"]),
    "embed": (embed.main, ["1.png", "0.png", "--out", "rows"]),
    "ijb": (ijb.main, ["IJBC", "--out", "parts"]),
    "clean": (clean.main, ["faces"]),
    "export": (export.main, ["--output", "made.onnx"]),
    "export to torch": (export.main, ["--format", "torch", "--output", "made.safetensors"]),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, of which 0.png is brighter than all others, sets of them, and six networks.

    ``huge`` has finite weights whose products are not finite, ``some.onnx`` gives numbers for all
    but bright images, ``maps`` ends with a Convolution, ``number`` gives one number per image.
    """
    folder = tmp_path_factory.mktemp("inputs")
    shape = (24, SIDE, SIDE, 3)
    images = np.random.default_rng(0).integers(0, 200, shape, np.uint8)
    images[0][:] = 255
    for number, image in enumerate(images[:3]):
        cv2.imwrite(f"{folder}/{number}.png", image)
    encoded = [cv2.imencode(".png", image)[1].tobytes() for image in images]
    write_bin(folder / "pairs.bin", encoded, [pair % 3 == 1 for pair in range(12)])
    with RecordWriter(folder / "faces", image_size=(SIDE, SIDE)) as writer:
        for number, one in enumerate(encoded):
            writer.write(one, number // 4)
    write_set(folder / "IJBC", images=True)
    export_network(folder / "m")
    found = read_parameters(folder / "m-0000.params")
    for name, key, value in (
        ("nan", "arg:stage2_conv0_weight", np.nan),
        # Before it an activation makes numbers of what is none.
        ("huge", "arg:pre_fc1_weight", 1e38),
        ("zero", "", 0),
    ):
        arrays = {
            one: np.full_like(array, value) if one.startswith(key) else array
            for one, array in found.items()
        }
        with (folder / f"{name}-0000.params").open("wb") as file:
            write_parameters(file, arrays)
        (folder / f"{name}-symbol.json").write_bytes((folder / "m-symbol.json").read_bytes())
    write_some(folder / "some.onnx")
    pixels = mx.sym.Flatten(mx.sym.var("data"))
    means = mx.sym.Pooling(mx.sym.var("data"), global_pool=True, kernel=(1, 1), pool_type="avg")
    for name, symbol in (
        ("maps", mx.sym.Convolution(means, kernel=(1, 1), num_filter=8, name="fc1")),
        ("number", mx.sym.sum(pixels, axis=1, name="fc1")),
    ):
        symbol.save(f"{folder}/{name}-symbol.json")
        (folder / f"{name}-0000.params").write_bytes((folder / "m-0000.params").read_bytes())
    return folder


def write_some(path: Path) -> None:
    """The mean of an image by channel, from which the largest pixel takes the root of 0.9 - x."""
    onnx = import_onnx()
    helper, single = onnx.helper, onnx.TensorProto.FLOAT
    shape = ["n", 3, SIDE, SIDE]
    nodes = [
        helper.make_node("ReduceMax", ["data"], ["most"], axes=[2, 3], keepdims=0),
        helper.make_node("Sub", ["limit", "most"], ["left"]),
        helper.make_node("Sqrt", ["left"], ["root"]),
        helper.make_node("ReduceMean", ["data"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("Add", ["root", "mean"], ["out"]),
    ]
    limit = helper.make_tensor("limit", single, [1], [0.9])
    data = helper.make_tensor_value_info("data", single, shape)
    out = helper.make_tensor_value_info("out", single, ["n", 3])
    graph = helper.make_graph(nodes, "some", [data], [out], [limit])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.save(model, str(path))


COMPUTING = ["verification", "compare", "embed", "clean", "ijb"]
NOT_FINITE = "the network gives embeddings that are not finite"
MISTAKES: list[tuple[str, str, Iterable[str]]] = [
    ("nan,0", "nan-0000.params: 'stage2_conv0_weight' has values", ["clean", "export to torch"]),
    ("maps,0", r"maps-symbol.json gives \[2, 8, 1, 1\] for two images", ["embed", "export"]),
    ("number,0", r"number-symbol.json gives \[2\] for two images; its output has to", ["ijb"]),
    ("m" * 300 + ",0", "-symbol.json (does not exist|cannot be read: File name too)", ["compare"]),
    ("huge,0", NOT_FINITE, [*COMPUTING, "compare with a set", "export"]),
    ("zero,0", "the network gives embeddings of length 0 for all", COMPUTING),
    ("some.onnx", rf"{NOT_FINITE} \([12] of \d+\)", COMPUTING[:-1]),
    # The images of IJB are bright, all of them.
    ("some.onnx", rf"{NOT_FINITE} \(\d+ of \d+\)", ["ijb"]),
]


@pytest.mark.parametrize(
    ("model", "message", "name"),
    [(model, message, name) for model, message, names in MISTAKES for name in names],
)
def test_a_network_without_a_finite_row_per_image(
    inputs: Path, model: str, message: str, name: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(inputs)
    main, words = COMMANDS[name]
    words = [str(tmp_path / "out") if word == "parts" else word for word in words]
    with pytest.raises(DataError, match=message) as failure:
        main([*words, "--model", model])
    assert "\n" not in str(failure.value) and "accuracy" not in capsys.readouterr().out
    assert not list(inputs.glob("rows*")) and not list(inputs.glob("made*"))


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
