"""The options of the command, on small sets with an untrained network, and its pictures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from data.verification.bin_file import VerificationSet, write_bin
from evaluation.export.__main__ import main as export
from evaluation.verification import __main__ as command
from evaluation.verification import pictures
from evaluation.verification.curves import Pairs, folds_of, pairs_of, roc
from evaluation.verification.pictures import draw_roc, write_bad_cases, write_hardest
from runtime import devices
from runtime.mxnet import mx
from tests.evaluation.support import check_refusal, export_network, noise, png
from tests.evaluation.verification.test_verification import bools, embedded

SIZE = "--image-size 32 32"
WORDS = f"--model m,0 --target one.bin two.bin {SIZE}"
SAME = [True, False] * 20
COSINES = np.array([0.9, 0.8, 0.2, 0.7, 0.2, -0.1])
PAIRS = Pairs(bools("SDSDSD"), COSINES, 2.0 - 2.0 * COSINES, folds_of(6, 2))
CURVE = roc(COSINES, PAIRS.same)
LFW = VerificationSet(Path("sets/lfw.bin"), [], PAIRS.same)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained network and sets of forty pairs: two that are right, and two that are not."""
    folder = tmp_path_factory.mktemp("inputs")
    export_network(folder / "m", 32)
    # Pairs of one person are of equal images.
    images = [png(noise(number - (number % 4 == 1), 32)) for number in range(160)]
    write_bin(folder / "one.bin", images[:80], SAME)
    write_bin(folder / "two.bin", images[80:], SAME)
    write_bin(folder / "alike.bin", images[:80], [True] * 40)
    write_bin(folder / "cut.bin", [*images[:79], images[79][:200]], SAME)
    for name, groups in (("groups", "a\na\nb\nb\n"), ("others", "c\nc\nd\nd\n")):
        (folder / f"{name}.txt").write_text(groups * 10)
    return folder


@pytest.fixture
def run(inputs: Path, tmp_path: Path, monkeypatch, capsys) -> Any:
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)

    def run(more: str, words: str = WORDS) -> Any:
        command.main(f"{words} {more}".split())
        return capsys.readouterr()

    return run


def test_everything_at_once(run: Any) -> None:
    outputs = "--json new/v.json --roc roc.png --roc-table --far 0.1 0.001"
    outputs += " --hardest h --bad-cases wrong"
    printed = run(f"--groups groups.txt others.txt {outputs}").out.splitlines()
    assert [line[:13] for line in printed if " ± " in line] == ["one: accuracy", "two: accuracy"]
    assert sum(line.startswith("two: FAR 0.001: no threshold") for line in printed) == 1
    sets = json.loads(Path("new/v.json").read_text())["sets"]
    assert [one["name"] for one in sets] == ["one", "two"]
    assert [sets[0][name] for name in ("pairs", "accuracy", "auc")] == [40, 1, 1]
    assert sets[0]["tar_at_far"]["0.1"] == 1.0 and sets[0]["tar_at_far"]["0.01"] is None
    thresholds = [row["threshold_cosine"] for row in sets[0]["thresholds_for_far"]]
    assert [one is None for one in thresholds] == [False, True]
    found = ["".join(row["name"] for row in one["by_group"]["groups"]) for one in sets]
    assert found == ["ab", "cd"]
    assert cv2.imread("roc.png") is not None
    assert sorted(path.name for path in Path("h").iterdir()) == [
        f"{one}-hardest-{kind}.png" for one in ("one", "two") for kind in ("different", "same")
    ]
    assert "wrong/two-wrong.tsv: 0 of 40 pairs are judged wrongly" in printed
    assert Path("wrong/one-wrong.tsv").exists()


def test_an_onnx_file_has_the_accuracy_of_its_checkpoint(run: Any, capsys) -> None:
    export(f"--model m,0 {SIZE}".split())
    capsys.readouterr()
    assert run("", "--model m.onnx --target one.bin").out == run("--target one.bin").out
    message = "m.onnx fails on 2 images of 8 x 8 .*; give a network for RGB images of this size"
    check_refusal(command.main, f"{WORDS} --model m.onnx --image-size 8 8".split(), message)


def test_sets_are_groups_of_one_table(run: Any) -> None:
    printed = run("--by-set --far 0.1 --json v.json").out.splitlines()
    start = printed.index("all sets by group:")
    assert printed[start - 1].startswith("all sets: FAR 0.1: cosine ")
    rows = [line.split()[:3] for line in printed[start + 2 : start + 4]]
    assert rows == [["one", "40", "1.0000"], ["two", "40", "1.0000"]]
    found = json.loads(Path("v.json").read_text())["all_sets"]
    assert [row["name"] for row in found["by_group"]["groups"]] == ["one", "two"]
    assert found["thresholds_for_far"][0]["held_out_far"]["pairs"] == 40


@pytest.mark.parametrize(
    ("gone", "more", "message"),
    [
        ("", "--target one.bin cut.bin", "cut.bin: image 79: .*; copy it again"),
        ("m-0000.params", "--target one.bin groups.txt", "groups.txt is no verification set"),
        ("m-0000.params", "--target one.bin alike.bin", "40 pairs, 40 of one .*10 folds need .* b"),
        ("m-0000.params", "--json two.bin/v.json", "choose another folder with --json"),
        ("m-symbol.json", "", "m-symbol.json"),
    ],
)
def test_what_cannot_be_judged_is_one_line(run: Any, gone, more, message, capsys) -> None:
    """What is known without the network is said before it computes; nothing is written."""
    if gone:
        Path(gone).unlink()
    check_refusal(command.main, f"{WORDS} --json v.json {more}".split(), message)
    assert ("one: accuracy" in capsys.readouterr().out) == (not gone)
    assert not Path("v.json").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--model k,0|x", "k,x' is not PREFIX,EPOCH"),
        ("--model k,0|12 --json v.json", "--json: it is about one network; give one epoch"),
        ("--far 0.1 --nfolds 5", "--far: it has 10 folds; leave out --nfolds 5"),
        ("--roc roc.pdf", "is no PNG"),
        ("--groups g.txt", "1 files for 2 sets"),
        ("--gpu", "--gpu: this process sees no GPU, or computes an ONNX file"),
        ("--target a/x.bin b/x.bin", "two sets are called 'x'"),
        ("--mode 1", "--mode is not an option here: type `--bad-cases DIR`"),
    ],
)
def test_options_that_are_refused(run: Any, more: str, message: str, monkeypatch) -> None:
    monkeypatch.setattr(devices, "choose", lambda *_: mx.cpu())
    check_refusal(command.main, f"{WORDS} {more}".split(), message)


def test_the_command_of_the_original(run: Any) -> None:
    """Its options, where the sets are names in a folder; ``two`` of three is there, and ``one``."""
    found = run("--data-dir . --target one,gone,two --nfolds 10 --batch-size 32")
    assert found.err == "warning: sets left out, which do not exist: gone.bin\n"
    assert run("").out == found.out
    Path("one.bin").rename("lfw.bin")
    model = f"--model m,0 {SIZE}"
    found = run("--data-dir .", model)
    assert found.out.startswith("lfw: accuracy 1.0000")
    assert "sets left out, which do not exist: cfp_ff.bin, cfp_fp.bin, agedb_30.bin" in found.err
    for words, message in (
        ("--data-dir sets --target a,b", "looked for sets/a.bin, sets/b.bin.;"),
        ("--data-dir . --target ,", "--target ',' names no set"),
        ("", "required: --target"),
    ):
        check_refusal(command.main, f"{model} {words}".split(), message)
    # A variable that is not set would look like sets that were verified.
    check_refusal(command.main, [*model.split(), "--target", ""], "cannot be read")


def test_several_epochs(run: Any) -> None:
    export_network(Path("m"), 32, epoch=12, seed=3)
    lines = run("--model m,0|12 --target one.bin").out.splitlines()
    starts = [line.split(": accuracy")[0] for line in lines[:2]]
    assert starts == ["one by m,0", "one by m,12"]
    assert lines[2].startswith("one: best accuracy 1.0000, of") and len(lines) == 3
    alone = run("--model m,12 --target one.bin").out.splitlines()[0]
    assert lines[1].split(": ", 1)[1] == alone.split(": ", 1)[1]


def test_a_number_of_folds(run: Any) -> None:
    assert "one: accuracy 1.0000 ± 0.0000" in run("--nfolds 40 --json v.json").out
    assert json.loads(Path("v.json").read_text())["options"]["folds"] == 40


def test_every_curve_is_drawn_and_has_its_name() -> None:
    """Also one without errors, or that matplotlib would leave out or take for a formula."""
    assert len({draw_roc({name: CURVE}) for name in ("_a", "_b", "$\\frac$")}) == 3
    found = draw_roc({"all right": roc(np.array([0.9, 0.1, 0.2, 0.3]), bools("SDDD"))})
    image = cv2.imdecode(np.frombuffer(found, np.uint8), cv2.IMREAD_COLOR)
    # There is a line of the first color, a blue.
    blue = (image[..., 0] > 150) & (image[..., 2] < 80)
    assert blue.any(axis=0).sum() > 100


@pytest.fixture
def sheets(monkeypatch: pytest.MonkeyPatch) -> Mock:
    found = Mock(side_effect=[b"sheet 1", b"sheet 2"])
    monkeypatch.setattr(pictures, "draw_chosen_pairs", found)
    return found


def test_the_hardest_come_first_and_equal_ones_as_in_the_set(tmp_path: Path, sheets: Mock) -> None:
    folder = tmp_path / "new"
    write_hardest(folder, LFW, PAIRS)
    (pairs, notes, _), (others, *_) = (call.args[1:] for call in sheets.call_args_list)
    assert (pairs, others) == ([2, 4, 0], [1, 3, 5])
    assert notes[1:] == ["pair 4: cosine 0.200", "pair 0: cosine 0.900"]
    names = [f"lfw-hardest-{kind}.png" for kind in ("same", "different")]
    assert [(folder / name).read_bytes() for name in names] == [b"sheet 1", b"sheet 2"]


def test_wrong_pairs_in_a_list_and_on_a_sheet_for_each_kind(tmp_path: Path, sheets: Mock) -> None:
    """The farthest comes first."""
    # Of the pairs 0 to 3 the threshold is 0.21, of the others 0.11.
    distances = (0.105, 0.315, 0.205, 0.405, 0.105, 0.205, 0.305, 0.405)
    pairs = pairs_of(embedded(*distances), bools("SSDDSSDD"), folds=2)
    folder = tmp_path / "new" / "wrong"
    line = write_bad_cases(folder, LFW, pairs)
    assert line == f"{folder}/lfw-wrong.tsv: 3 of 8 pairs are judged wrongly"
    assert (folder / "lfw-wrong.tsv").read_text().splitlines() == [
        "pair\tfold\tperson\tdistance\tthreshold",
        *("1\t0\tsame\t0.3150\t0.21", "5\t1\tsame\t0.2050\t0.11"),
        "2\t0\tdifferent\t0.2050\t0.21",
    ]
    same, different = (one.args[1:] for one in sheets.call_args_list)
    assert same[:2] == ([1, 5], ["1: 0.315, 0.21", "5: 0.205, 0.11"])
    assert different[:2] == ([2], ["2: 0.205, 0.21"])
    assert (folder / "lfw-same.png").read_bytes() == b"sheet 1"
