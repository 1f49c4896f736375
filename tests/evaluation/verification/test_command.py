"""The options of the command, on small sets with an untrained network."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from backbones.model import Backbone
from backbones.options import BackboneOptions
from data.verification.bin_file import write_bin
from evaluation.export.__main__ import main as export
from evaluation.verification import __main__ as command
from runtime.errors import ConfigError, DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(5)
    for name in ("one", "two"):
        images = []
        for pair in range(40):
            first, other = generator.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
            images += [first, first if pair % 2 == 0 else other]
        encoded = [cv2.imencode(".png", image)[1].tobytes() for image in images]
        write_bin(tmp_path / f"{name}.bin", encoded, [pair % 2 == 0 for pair in range(40)])
    options = BackboneOptions(network="tiny", embedding_size=8)
    Backbone.create(options, image_size=(32, 32)).export(tmp_path / "m")
    (tmp_path / "groups.txt").write_text("a\na\nb\nb\n" * 10)
    return tmp_path


def line_of(folder: Path, *more: str) -> list[str]:
    sets = ["--target", f"{folder}/one.bin", f"{folder}/two.bin"]
    return ["--model", f"{folder}/m,0", *sets, "--image-size", "32", "32", *more]


def test_everything_at_once(folder: Path, capsys) -> None:
    groups = ["--groups", *[f"{folder}/groups.txt"] * 2]
    outputs = ["--json", f"{folder}/new/v.json", "--roc", f"{folder}/roc.png"]
    more = [*groups, *outputs, "--roc-table", "--far", "0.1", "0.001", "--hardest", f"{folder}/h"]
    command.main(line_of(folder, *more))
    printed = capsys.readouterr().out.splitlines()
    assert [line[:13] for line in printed if " ± " in line] == ["one: accuracy", "two: accuracy"]
    assert sum(line.startswith("two: FAR 0.001: no threshold") for line in printed) == 1
    content = json.loads((folder / "new/v.json").read_text())
    assert [one["name"] for one in content["sets"]] == ["one", "two"]
    found = content["sets"][0]
    assert found["pairs"] == 40 and found["accuracy"] == 1.0 and found["auc"] == 1.0
    assert found["tar_at_far"]["0.1"] == 1.0 and found["tar_at_far"]["0.01"] is None
    assert [row["threshold_cosine"] is None for row in found["thresholds_for_far"]] == [False, True]
    assert [row["name"] for row in found["by_group"]["groups"]] == ["a", "b"]
    assert cv2.imread(f"{folder}/roc.png") is not None
    kinds = ("same", "different")
    names = {f"{one}-hardest-{kind}.png" for one in ("one", "two") for kind in kinds}
    assert {path.name for path in (folder / "h").iterdir()} == names


def test_an_onnx_file_has_the_accuracy_of_its_checkpoint(folder: Path, capsys) -> None:
    export(["--model", f"{folder}/m,0", "--image-size", "32", "32"])
    capsys.readouterr()
    target = ["--target", f"{folder}/one.bin"]
    command.main(["--model", f"{folder}/m.onnx", *target])
    command.main(["--model", f"{folder}/m,0", *target, "--image-size", "32", "32"])
    onnx, mxnet = capsys.readouterr().out.splitlines()
    assert onnx == mxnet
    with pytest.raises(ConfigError, match="takes images of 32 x 32; leave it out"):
        command.main(["--model", f"{folder}/m.onnx", *target, "--image-size", "8", "8"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--far", "1"], "'1' is no share between 0 and 1"),
        (["--roc", "roc.pdf"], "is no PNG"),
        (["--groups", "g.txt"], "1 files for 2 sets"),
        (["--gpu"], "sees no GPU"),
        (["--json", "/"], "is a folder"),
        (["--target", "a/x.bin", "b/x.bin"], "two sets are called 'x'"),
        (["--model", "m.onnx", "--gpu"], "--gpu: ONNX Runtime computes m.onnx on the processor"),
    ],
)
def test_options_that_are_refused(more: list[str], message: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        command.main(line_of(folder, *more))


def test_a_file_that_cannot_be_written_is_said_first(folder: Path) -> None:
    (folder / "m-0000.params").unlink()
    with pytest.raises(DataError, match="choose another folder with --json"):
        command.main(line_of(folder, "--json", f"{folder}/one.bin/v.json"))
