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
from tests.support.alone import assert_one_line, metrics, run_alone, trained
from tests.support.launch import finish

# Batches made in memory, for a small network.
MEMORY = ("--dataset", "100w", "--num-classes", 20, "--batch-size", 4)
TINY = (*MEMORY, "--network", "tiny", "--embedding-size", 16)


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faces") / "set"
    face_set.ensure(folder, identities=40, images_per_identity=12, image_size=(64, 64), seed=3)
    # A tenth of the pairs: they are verified twice in every run.
    target = read_bin(folder / "unseen.bin")
    images = np.array(target.images, object).reshape(-1, 2)[::10].ravel()
    write_bin(folder / "unseen.bin", list(images), [bool(same) for same in target.same[::10]])
    return folder


def start(*command, **variables):
    # By the environment and not as an option: horovodrun takes --network for one of its own.
    return finish(*command, status=None, NETWORK="tiny", **variables)


def test_a_mistake_is_one_line():
    wrong = start(sys.executable, "train.py", "--dataset", "synthetic", "--loss", "cosfase")
    assert_one_line(wrong, "cosfase", "did you mean 'cosface'?")


@pytest.mark.launcher
def test_run_sh(faces, tmp_path):
    """Three updates that both ranks have made together, and what they leave."""
    result = start(
        *("bash", "run.sh", "--rec", faces, "--embedding-size", 64, "--batch-size", 16),
        *("--max-update", 3, "--models-root", tmp_path, "--val-targets", "unseen,missing"),
        *("--frequent", 1),
        NP="2",
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for name in ("model-symbol.json", "model-0000.params", "metrics.jsonl"):
        assert (tmp_path / name).stat().st_size > 0
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    for figure in ("accuracy-0", "roc", "scores-0", "loss", "throughput", "samples"):
        assert f'<figure id="{figure}">' in report, figure
    logs = [path.read_text() for path in sorted((tmp_path / "logs").glob("rank-*.log"))]
    first, second = (re.findall(r"update (\d+)/3  .*?loss (\S+)", log) for log in logs)
    assert first == second, "the loss of the global batch is everybody's"
    assert [update for update, _ in first] == ["1", "2", "3"]
    losses = {float(loss) for _, loss in first}
    assert len(losses) == 3 and all(map(math.isfinite, losses)), "the network has changed"
    assert "VERIFICATION SET MISSING" in result.stdout + result.stderr
    assert "accuracy untrained" in result.stdout
    assert "%|" not in result.stdout, "a progress bar without a terminal"
    assert json.loads((tmp_path / "config.json").read_text())["max_update"] == 3
    running = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not [words for words in running if str(tmp_path) in " ".join(words)]


def parameters_of(network):
    return {name: value.data().asnumpy() for name, value in network.parameters.items()}


@pytest.mark.thorough
def test_an_update_of_a_published_network(tmp_path):
    """It changes every weight, and what is exported loads."""
    # Without weight decay, so that a weight without a gradient would stay as it is.
    words = ("--network", "r50-se", "--net-output", "GNAP", "--seed", 4, "--wd", 0)
    end = ("--batch-size", 2, "--max-update", 1, "--models-root", tmp_path)
    trained(program, *MEMORY, *words, *end)
    options = BackboneOptions(network="r50-se", net_output="GNAP")
    before = parameters_of(Backbone.create(options, seed=4))
    after = parameters_of(Backbone.load(tmp_path / "model"))
    assert sorted(after) == sorted(before)
    for name, values in before.items():
        assert np.isfinite(after[name]).all(), name
        assert not name.endswith("_weight") or (after[name] != values).any(), name


def test_a_run_does_not_go_on_with_another_output(tmp_path):
    made = (*TINY, "--models-root", tmp_path, "--max-update", 1, "--net-output")
    trained(program, *made, "E")
    before = (tmp_path / "model-0000.params").read_bytes()
    result = run_alone(program, *made, "FC")
    assert_one_line(result, "--net-output E there and FC here", "--models-root", "--resume never")
    assert (tmp_path / "model-0000.params").read_bytes() == before


@pytest.mark.thorough
def test_frozen_tensors_keep_the_bytes_of_the_checkpoint_they_come_from(tmp_path):
    """Over updates, checkpoints and a continued run, which ends as one without a break."""
    made = (*TINY, "--seed", 5, "--lr", 0.05, "--save-interval", 2, "--models-root")

    def train(folder, *options):
        trained(program, *made, tmp_path / folder, *options)
        return parameters_of(Backbone.load(tmp_path / folder / "model"))

    def assert_kept(found, expected, names):
        for name in expected:
            assert (found[name] == expected[name]).all() == (name in names), name

    before = train("first", "--max-update", 2)
    tuned = ("--pretrained", f"{tmp_path}/first/model,0", "--freeze", "conv0_*,bn0_*,stage1_*")
    after = train("whole", *tuned, "--max-update", 4)
    frozen = [name for name in after if name.startswith(("conv0_", "bn0_", "stage1_"))]
    assert len(frozen) == 10
    kept = [*frozen, "fc1_gamma"]
    assert_kept(after, before, kept)

    # The same in two runs. Without the frozen ones in its memory, the optimizer goes on.
    newest = "checkpoints/update-00000004"
    manifest = (tmp_path / "whole" / newest / "manifest.json").read_text()
    assert "optimizer/conv0_weight" not in manifest
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again" / newest)
    assert_kept(train("again", *tuned, "--max-update", 4), after, after)

    # A teacher that is only measured changes nothing; one with a weight does.
    teacher = ("--teacher", f"{tmp_path}/first/model,0", "--max-update", 4, "--frequent", 1)
    train("measured", *tuned, *teacher, "--teacher-weight", 0)
    for path in ("model-0000.params", f"{newest}/rank-0000.bin"):
        content = (tmp_path / "whole" / path).read_bytes()
        assert (tmp_path / "measured" / path).read_bytes() == content, path
    distances = metrics(tmp_path / "measured", "teacher_loss")
    assert len(set(distances)) == 4 and all(0 < distance < 2 for distance in distances)
    assert_kept(train("taught", *tuned, *teacher, "--teacher-weight", 100), after, kept)

    there = "--freeze ['conv0_*', 'bn0_*', 'stage1_*'] there"
    other = (*made, tmp_path / "again", *tuned[:3], "conv0_*", "--max-update", 5)
    assert_one_line(run_alone(program, *other), there, "--resume never")
    wrong = (*made, tmp_path / "new", "--freeze", "stage7_*", "--max-update", 1)
    fits = "--freeze 'stage7_*' fits no parameter"
    assert_one_line(run_alone(program, *wrong), fits, "did you mean 'stage")


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
    losses, accuracies = metrics(tmp_path, "loss"), metrics(tmp_path, "accuracy")
    assert losses[-1] < 0.1 * losses[0]
    assert accuracies[-1] > accuracies[0] + 0.12
