"""The program as its users start it: mistakes, launchers, and a small run that must learn."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys

import numpy as np
import psutil
import pytest

import train as program
from backbones.model import Backbone
from backbones.options import BackboneOptions
from data.drawn import face_set
from data.verification.bin_file import read_bin, write_bin
from tests.support.alone import run_alone
from tests.support.launch import finish

# Batches made in memory.
MEMORY = ("--dataset", "100w", "--num-classes", 20)


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faces") / "set"
    face_set.ensure(folder, identities=40, images_per_identity=12, image_size=(64, 64), seed=3)
    # A tenth of the pairs: they are verified twice in every run.
    target = read_bin(folder / "unseen.bin")
    pairs = range(0, len(target.same), 10)
    images = [target.images[2 * pair + side] for pair in pairs for side in (0, 1)]
    write_bin(folder / "unseen.bin", images, [bool(target.same[pair]) for pair in pairs])
    return folder


def start(*command, **variables):
    # By the environment and not as an option: horovodrun takes --network for one of its own.
    return finish(*command, status=None, NETWORK="tiny", **variables)


def assert_one_line(result, *parts):
    lines = [line for line in result.stderr.splitlines() if "error: " in line]
    assert result.returncode == 2, result.stdout + result.stderr
    assert len(lines) == 1 and "Traceback" not in result.stderr, result.stderr
    for part in parts:
        assert part in lines[0]


def test_a_mistake_is_one_line():
    wrong = start(sys.executable, "train.py", "--dataset", "synthetic", "--loss", "cosfase")
    assert_one_line(wrong, "cosfase", "did you mean 'cosface'?")


def test_a_damaged_record_set_is_one_line(faces, tmp_path):
    for name in ("train.rec", "train.idx"):
        (tmp_path / name).symlink_to(faces / name)
    (tmp_path / "property").write_text("7,64,64\n")
    options = ("--rec", tmp_path, "--network", "tiny", "--models-root", tmp_path / "models")
    assert_one_line(run_alone(program, *options), "property")


def settings(faces, models):
    return [
        *("--rec", faces, "--embedding-size", 64, "--batch-size", 16, "--max-update", 3),
        *("--models-root", models, "--val-targets", "unseen,missing", "--frequent", 1),
    ]


def assert_trained(result, models, ranks):
    """Three updates that all ranks have made together, and what they leave."""
    assert result.returncode == 0, result.stdout + result.stderr
    for name in ("model-symbol.json", "model-0000.params", "metrics.jsonl"):
        assert (models / name).stat().st_size > 0
    report = (models / "report.html").read_text(encoding="utf-8")
    for figure in ("accuracy-0", "roc", "scores-0", "loss", "throughput", "samples"):
        assert f'<figure id="{figure}">' in report, figure
    logs = [path.read_text() for path in sorted((models / "logs").glob("rank-*.log"))]
    losses = [re.findall(r"update (\d+)/3  .*?loss (\S+)", log) for log in logs]
    assert losses == [losses[0]] * ranks, "the loss of the global batch is everybody's"
    assert [update for update, _ in losses[0]] == ["1", "2", "3"]
    assert all(math.isfinite(float(loss)) for _, loss in losses[0])
    assert len({loss for _, loss in losses[0]}) == 3, "the network has changed"
    assert "VERIFICATION SET MISSING" in result.stdout + result.stderr
    assert "accuracy untrained" in result.stdout
    assert "%|" not in result.stdout, "a progress bar without a terminal"
    assert json.loads((models / "config.json").read_text())["max_update"] == 3


def assert_no_process_names(folder):
    running = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not [words for words in running if str(folder) in " ".join(words)]


@pytest.mark.launcher
def test_run_sh(faces, tmp_path):
    assert_trained(start("bash", "run.sh", *settings(faces, tmp_path), NP="2"), tmp_path, 2)
    assert_no_process_names(tmp_path)


def parameters_of(network):
    return {name: value.data().asnumpy() for name, value in network.parameters.items()}


@pytest.mark.thorough
def test_an_update_of_a_published_network(tmp_path):
    """It changes every weight, and what is exported loads."""
    # Without weight decay, so that a weight without a gradient would stay as it is.
    result = run_alone(
        program,
        *(*MEMORY, "--models-root", tmp_path, "--network", "r50-se", "--net-output", "GNAP"),
        *("--seed", 4, "--batch-size", 2, "--max-update", 1, "--wd", 0),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    options = BackboneOptions(network="r50-se", net_output="GNAP")
    untrained = parameters_of(Backbone.create(options, seed=4))
    trained = parameters_of(Backbone.load(tmp_path / "model"))
    assert sorted(trained) == sorted(untrained)
    for name, values in untrained.items():
        assert np.isfinite(trained[name]).all(), name
        assert not name.endswith("_weight") or (trained[name] != values).any(), name


def test_a_run_does_not_go_on_with_another_output(tmp_path):
    made = [*MEMORY, "--models-root", tmp_path, "--batch-size", 4, "--network", "tiny"]
    made += ["--embedding-size", 16, "--max-update", 1]
    assert run_alone(program, *made, "--net-output", "E").returncode == 0
    before = (tmp_path / "model-0000.params").read_bytes()
    result = run_alone(program, *made, "--net-output", "FC")
    assert_one_line(result, "--net-output E there and FC here", "--models-root", "--resume never")
    assert (tmp_path / "model-0000.params").read_bytes() == before


@pytest.mark.thorough
def test_frozen_tensors_keep_the_bytes_of_the_checkpoint_they_come_from(tmp_path):
    """Over updates, checkpoints and a continued run, which ends as one without a break."""
    made = [*MEMORY, "--batch-size", 4, "--embedding-size", 16, "--network", "tiny", "--seed", 5]
    made += ["--lr", 0.05, "--save-interval", 2]

    def run(folder, *options):
        return run_alone(program, *made, "--models-root", tmp_path / folder, *options)

    def trained(folder, *options):
        result = run(folder, *options)
        assert result.returncode == 0, result.stderr
        return parameters_of(Backbone.load(tmp_path / folder / "model"))

    def are_as(found, expected, names):
        for name in expected:
            assert (found[name] == expected[name]).all() == (name in names), name

    before = trained("first", "--max-update", 2)
    tuned = ("--pretrained", f"{tmp_path}/first/model,0", "--freeze", "conv0_*,bn0_*,stage1_*")
    after = trained("whole", *tuned, "--max-update", 4)
    frozen = [name for name in after if name.startswith(("conv0_", "bn0_", "stage1_"))]
    assert len(frozen) == 10
    kept = [*frozen, "fc1_gamma"]
    are_as(after, before, kept)

    # The same in two runs. Without the frozen ones in its memory, the optimizer goes on.
    newest = tmp_path / "whole/checkpoints/update-00000004"
    assert "optimizer/conv0_weight" not in (newest / "manifest.json").read_text()
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again/checkpoints" / newest.name)
    are_as(trained("again", *tuned, "--max-update", 4), after, after)

    # A teacher that is only measured changes nothing; one with a weight does.
    teacher = ("--teacher", f"{tmp_path}/first/model,0", "--max-update", 4, "--frequent", 1)
    trained("measured", *tuned, *teacher, "--teacher-weight", 0)
    for path in ("model-0000.params", f"checkpoints/{newest.name}/rank-0000.bin"):
        content = (tmp_path / "whole" / path).read_bytes()
        assert (tmp_path / "measured" / path).read_bytes() == content, path
    lines = (tmp_path / "measured/metrics.jsonl").read_text().splitlines()
    distances = [json.loads(line)["teacher_loss"] for line in lines]
    assert len(set(distances)) == 4 and all(0 < distance < 2 for distance in distances)
    are_as(trained("taught", *tuned, *teacher, "--teacher-weight", 100), after, kept)

    there = "--freeze ['conv0_*', 'bn0_*', 'stage1_*'] there"
    other = run("again", *tuned[:3], "conv0_*", "--max-update", 5)
    assert_one_line(other, there, "--resume never")
    wrong = run("new", "--freeze", "stage7_*", "--max-update", 1)
    assert_one_line(wrong, "--freeze 'stage7_*' fits no parameter", "did you mean 'stage")


@pytest.mark.thorough
@pytest.mark.launcher
@pytest.mark.learning
def test_two_ranks_learn_faces(faces, tmp_path):
    result = start(
        *("bash", "run.sh", "--rec", faces, "--network", "tiny", "--embedding-size", 64),
        *("--models-root", tmp_path, "--batch-size", 32, "--loss", "softmax", "--scale", 16),
        *("--val-targets", "unseen", "--lr", 0.2, "--warmup", 20, "--lr-schedule", "cosine"),
        *("--max-update", 120, "--frequent", 20),
        NP="2",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    accuracies = [record["accuracy"] for record in records if "accuracy" in record]
    assert losses[-1] < 0.1 * losses[0]
    assert accuracies[-1] > accuracies[0] + 0.12
