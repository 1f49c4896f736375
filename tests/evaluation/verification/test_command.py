"""The options of the command, on small sets with an untrained network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from data.verification.bin_file import read_bin, write_bin
from evaluation.export.__main__ import main as export
from evaluation.verification import __main__ as command
from runtime import devices
from runtime.errors import ConfigError, DataError
from runtime.mxnet import mx
from tests.evaluation.untrained import export_network


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an untrained network, ``m``."""
    folder = tmp_path_factory.mktemp("network")
    export_network(folder / "m", 32)
    return folder


@pytest.fixture
def folder(network: Path, tmp_path: Path) -> Path:
    """Two sets of twenty pairs of each kind, and a copy of the network."""
    shutil.copytree(network, tmp_path, dirs_exist_ok=True)
    generator = np.random.default_rng(5)
    for name in ("one", "two"):
        images = []
        for pair in range(40):
            first, other = generator.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
            images += [first, first if pair % 2 == 0 else other]
        encoded = [cv2.imencode(".png", image)[1].tobytes() for image in images]
        write_bin(tmp_path / f"{name}.bin", encoded, [pair % 2 == 0 for pair in range(40)])
    (tmp_path / "groups.txt").write_text("a\na\nb\nb\n" * 10)
    return tmp_path


def line_of(folder: Path, *more: str) -> list[str]:
    sets = ["--target", f"{folder}/one.bin", f"{folder}/two.bin"]
    return ["--model", f"{folder}/m,0", *sets, "--image-size", "32", "32", *more]


def test_everything_at_once(folder: Path, capsys) -> None:
    # The groups of each set are in the order of the sets.
    (folder / "others.txt").write_text("c\nc\nd\nd\n" * 10)
    groups = ["--groups", f"{folder}/groups.txt", f"{folder}/others.txt"]
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
    for one, names in zip(content["sets"], ("ab", "cd")):
        assert [row["name"] for row in one["by_group"]["groups"]] == [*names]
    assert cv2.imread(f"{folder}/roc.png") is not None
    assert sorted(path.name for path in (folder / "h").iterdir()) == [
        f"{one}-hardest-{kind}.png" for one in ("one", "two") for kind in ("different", "same")
    ]


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


def test_sets_are_groups_of_one_table(folder: Path, capsys) -> None:
    command.main(line_of(folder, "--by-set", "--far", "0.1", "--json", f"{folder}/v.json"))
    printed = capsys.readouterr().out.splitlines()
    start = printed.index("all sets by group:")
    assert printed[start - 1].startswith("all sets: FAR 0.1: cosine ")
    rows = [line.split()[:3] for line in printed[start + 2 : start + 4]]
    assert rows == [["one", "40", "1.0000"], ["two", "40", "1.0000"]]
    content = json.loads((folder / "v.json").read_text())["all_sets"]
    rows = content["by_group"]["groups"]
    assert [row["name"] for row in rows] == ["one", "two"]
    held_out = content["thresholds_for_far"][0]["held_out_far"]
    accepted = [row["for_far"][0]["far"]["accepted"] for row in rows]
    assert held_out["pairs"] == 40 and sum(accepted) == held_out["accepted"]


@pytest.mark.parametrize("damage", ["image", "no set", "one kind", "output", "no network"])
def test_what_cannot_be_judged_is_one_line(damage: str, folder: Path, capsys) -> None:
    """What is known without the network is said before it computes; nothing is written."""
    target, path, output = read_bin(folder / "two.bin"), folder / "two.bin", folder / "v.json"
    same, message = target.same.tolist(), "'two' has 40 pairs, 40 of one person; 10 folds need .* b"
    if damage == "image":
        # It is cut off.
        write_bin(path, [*target.images[:79], target.images[79][:200]], same)
        message = r"two.bin: image 79: .*; copy it again"
    elif damage == "no set":
        path.write_bytes(b"no pickle")
        message = "two.bin is no verification set"
    elif damage == "one kind":
        write_bin(path, target.images, [True] * 40)
    elif damage == "output":
        (folder / "m-0000.params").unlink()
        output, message = path / "v.json", "choose another folder with --json"
    else:
        (folder / "m-symbol.json").unlink()
        message = "m-symbol.json"
    with pytest.raises(DataError, match=message) as caught:
        command.main(line_of(folder, "--json", str(output)))
    assert "\n" not in str(caught.value)
    assert ("one: accuracy" in capsys.readouterr().out) == (damage == "image")
    assert not output.exists()


def test_a_gpu_is_taken_without_being_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the other programs of this room do it; ``--gpu`` only refuses a host without one."""
    taken = []

    def open_it(options, context):
        taken.append(context)
        raise DataError("no network")

    monkeypatch.setattr(command, "open_network", open_it)
    monkeypatch.setattr(devices, "choose", lambda ranks, dtype: mx.gpu(0))
    for more in ([], ["--gpu"]):
        with pytest.raises(DataError, match="no network"):
            command.main(line_of(folder, *more))
    assert taken == [mx.gpu(0)] * 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--model model", "'model' is not PREFIX,EPOCH"),
        ("--far 1", "'1' is no share between 0 and 1"),
        ("--roc roc.pdf", "is no PNG"),
        ("--groups g.txt", "1 files for 2 sets"),
        ("--groups g.txt g.txt --by-set", "--groups names others; leave out one"),
        ("--target x.bin --by-set", "one set is one group"),
        ("--gpu", "--gpu: this process sees no GPU; leave it out"),
        ("--gpu 1", "--gpu: '1' chooses no GPU here: set CUDA_VISIBLE_DEVICES=1"),
        ("--json /", "is a folder"),
        ("--json {folder}/one.bin", "one.bin would replace what this command reads"),
        ("--target a/x.bin b/x.bin", "two sets are called 'x'"),
        ("--model m.onnx --gpu", "--gpu: ONNX Runtime computes m.onnx on the processor"),
        ("--mode 1", "--mode is not an option here: .* give --bad-cases DIR"),
        ("--max 2,4", r"--max is not an option here: name the epochs, .* PREFIX,8\|9"),
    ],
)
def test_options_that_are_refused(
    more: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "choose", lambda *_: mx.cpu())
    with pytest.raises(ConfigError, match=message) as failure:
        command.main(line_of(folder, *more.format(folder=folder).split()))
    assert "\n" not in str(failure.value)


def test_the_pairs_that_are_judged_wrongly_are_written(folder: Path, capsys) -> None:
    """Of forty pairs two with a wrong label, one of each kind."""
    target = read_bin(folder / "one.bin")
    same = target.same.copy()
    same[[2, 7]] = ~same[[2, 7]]
    write_bin(folder / "one.bin", target.images, same.tolist())
    words = ["--model", f"{folder}/m,0", "--target", f"{folder}/one.bin"]
    command.main([*words, "--image-size", "32", "32", "--bad-cases", f"{folder}/wrong"])
    printed = capsys.readouterr().out.splitlines()
    assert "accuracy 0.9500" in printed[0]
    assert printed[1] == f"{folder}/wrong/one-wrong.tsv: 2 of 40 pairs are judged wrongly"
    _, *rows = (folder / "wrong/one-wrong.tsv").read_text().splitlines()
    assert {tuple(row.split("\t")[::2][:2]) for row in rows} == {("2", "different"), ("7", "same")}
    sheets = {path.stem for path in (folder / "wrong").glob("*.png")}
    assert sheets == {"one-same", "one-different"}


def test_the_command_of_the_original(folder: Path, monkeypatch, capsys) -> None:
    """Its options, where the sets are names in a folder; ``two`` of three is there, and ``one``."""
    monkeypatch.chdir(folder)
    model = ["--model", "m,0", "--image-size", "32", "32", "--batch-size", "32"]
    command.main([*model, "--data-dir", ".", "--target", "one,gone,two", "--nfolds", "10"])
    printed = capsys.readouterr()
    assert printed.err == "warning: 1 of 3 sets left out, which do not exist: gone.bin\n"
    command.main([*model, "--target", "one.bin", "two.bin"])
    assert capsys.readouterr().out == printed.out
    command.main([*model, "--target", "one,two"])
    assert capsys.readouterr().out == printed.out
    Path("sets").mkdir()
    Path("one.bin").rename("sets/lfw.bin")
    command.main([*model, "--data-dir", "sets"])
    printed = capsys.readouterr()
    assert printed.out.startswith("lfw: accuracy 1.0000")
    said = "3 of 4 sets left out, which do not exist: sets/cfp_ff.bin, sets/cfp_fp.bin"
    assert said in printed.err
    with pytest.raises(DataError, match="sets/a.bin does not exist, nor does any other of the 2"):
        command.main([*model, "--data-dir", "sets", "--target", "a,b"])
    with pytest.raises(DataError, match="a.bin does not exist, nor does any other of the 1 sets"):
        command.main([*model, "--target", "a" * 300])
    with pytest.raises(ConfigError, match="required: --target"):
        command.main(model)
    # A variable that is not set would look like sets that were verified.
    for words, said in (([""], "''"), ([",", ""], "', '")):
        for more in ([], ["--data-dir", "."]):
            with pytest.raises(DataError, match=f"--target {said} names no set; give files, or na"):
                command.main([*model, "--target", *words, *more])


def test_several_epochs(folder: Path, capsys) -> None:
    """As with InsightFace: each for each set, and the best."""
    for kind in ("symbol.json", "0000.params"):
        shutil.copy(folder / f"m-{kind}", folder / f"k-{kind}")
    export_network(folder / "k", 32, epoch=12, seed=3)
    words = [*line_of(folder)[:4], "--image-size", "32", "32"]
    words[1] = f"{folder}/k,0|12"
    command.main(words)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": accuracy")[0] for line in lines[:2]] == [
        f"one by {folder}/k,0", f"one by {folder}/k,12",
    ]  # fmt: skip
    assert lines[2].startswith("one: best accuracy 1.0000, of") and len(lines) == 3
    words[1] = f"{folder}/k,12"
    command.main(words)
    assert lines[1].split(": ", 1)[1] == capsys.readouterr().out.splitlines()[0].split(": ", 1)[1]
    words[1] = f"{folder}/k,0|x"
    with pytest.raises(ConfigError, match="k,x' is not PREFIX,EPOCH"):
        command.main(words)
    words[1] = f"{folder}/k,0|12"
    with pytest.raises(ConfigError, match="--json: it is about one network; give one epoch"):
        command.main([*words, "--json", "v.json"])


def test_a_number_of_folds(folder: Path, capsys) -> None:
    command.main(line_of(folder, "--nfolds", "40", "--json", f"{folder}/v.json"))
    assert "one: accuracy 1.0000 ± 0.0000" in capsys.readouterr().out
    assert json.loads((folder / "v.json").read_text())["options"]["folds"] == 40
    with pytest.raises(DataError, match="one' has 40 pairs, 20 of one person; 41 folds need"):
        command.main(line_of(folder, "--nfolds", "41"))
    with pytest.raises(ConfigError, match="--far: it has 10 folds; leave out --nfolds 5"):
        command.main(line_of(folder, "--nfolds", "5", "--far", "0.1"))
    write_bin(folder / "two.bin", read_bin(folder / "two.bin").images[:6], [True, False, True])
    command.main(line_of(folder, "--nfolds", "2"))
    assert "two: accuracy" in capsys.readouterr().out
    with pytest.raises(DataError, match="two' has 3 pairs, 2 of one person; 10 folds need"):
        command.main(line_of(folder))
