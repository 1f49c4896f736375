"""The program as its users start it: mistakes, launchers, and a small run that must learn."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import train as program
from backbones.model import Backbone
from backbones.options import BackboneOptions
from data.drawn import face_set
from data.verification.bin_file import read_bin, write_bin
from tests.support.alone import run_alone
from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[1]
IDENTITIES, IMAGES = 40, 12


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faces") / "set"
    face_set.ensure(
        folder, identities=IDENTITIES, images_per_identity=IMAGES, image_size=(64, 64), seed=3
    )
    # A tenth of the pairs: they are verified twice in every run.
    target = read_bin(folder / "unseen.bin")
    pairs = range(0, len(target.same), 10)
    images = [target.images[2 * pair + side] for pair in pairs for side in (0, 1)]
    write_bin(folder / "unseen.bin", images, [bool(target.same[pair]) for pair in pairs])
    return folder


def start(*command, **variables):
    # By the environment and not as an option: horovodrun takes --network for one of its own.
    variables.setdefault("NETWORK", "tiny")
    return subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**clean_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def train(*options):
    return start(sys.executable, "train.py", *options)


def assert_one_line(result, *parts):
    lines = [line for line in result.stderr.splitlines() if "error: " in line]
    assert result.returncode == 2, result.stdout + result.stderr
    assert len(lines) == 1 and "Traceback" not in result.stderr, result.stderr
    for part in parts:
        assert part in lines[0]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ("--dataset synthetic --loss cosfase", ["cosfase", "did you mean 'cosface'?"]),
        ("--dataset synthetic --sample-ratio 0", ["--sample-ratio 0", "above 0"]),
        ("--dataset synthetic --network r97", ["r97", "did you mean"]),
        ("--rec /nowhere", ["/nowhere", "train.rec"]),
        ("--dataset synthetic --batch-sise 4", ["--batch-sise", "--batch-size"]),
    ],
)
def test_a_wrong_option_is_one_line_with_the_remedy(options, parts):
    assert_one_line(train(*options.split()), *parts)


def test_a_property_file_with_too_few_classes(faces, tmp_path):
    for name in ("train.rec", "train.idx"):
        (tmp_path / name).symlink_to(faces / name)
    (tmp_path / "property").write_text("7,64,64\n")
    options = ("--rec", tmp_path, "--network", "tiny", "--models-root", tmp_path / "models")
    assert_one_line(run_alone(program, *options), "7", "property")


def test_a_truncated_record_file(faces, tmp_path):
    for name in ("train.idx", "property"):
        (tmp_path / name).symlink_to(faces / name)
    content = (faces / "train.rec").read_bytes()
    (tmp_path / "train.rec").write_bytes(content[: len(content) * 2 // 3])
    result = train("--rec", tmp_path, "--network", "tiny", "--models-root", tmp_path / "models")
    assert_one_line(result, "train.rec")


@pytest.mark.thorough
def test_images_that_the_network_cannot_take(tmp_path):
    """A rectangle, which the kernel of MobileFaceNet's output does not fit into."""
    face_set.ensure(
        tmp_path / "set", identities=4, images_per_identity=4, image_size=(112, 96), seed=3
    )
    options = [
        *("--rec", tmp_path / "set", "--models-root", tmp_path / "models", "--batch-size", 4),
        *("--max-update", 1, "--val-targets", "", "--keep", 0),
    ]
    result = train(*options, "--network", "mbf")
    assert_one_line(result, "--network mbf cannot take images of 112 x 96", "97 x 97 or larger")
    assert "infer_shape" not in result.stdout
    result = train(*options, "--network", "mbf", "--net-output", "FC", "--embedding-size", 8)
    assert result.returncode == 0, result.stderr


def test_a_dry_run_needs_no_data_and_prints_the_plan():
    result = train("--dataset", "glint360k_8GPU", "--dry-run", "--world-size", "7")
    assert result.returncode == 0, result.stderr
    for part in ("51,462", "51,461", "448"):
        assert part in result.stdout, result.stdout


def settings(faces, models):
    return [
        *("--rec", faces, "--embedding-size", 64, "--batch-size", 16),
        *("--models-root", models, "--val-targets", "unseen,missing", "--frequent", 1),
    ]


def assert_trained(result, models, ranks):
    """Three updates that all ranks have made together, and what they leave."""
    assert result.returncode == 0, result.stdout + result.stderr
    for name in ("model-symbol.json", "model-0000.params", "config.json", "metrics.jsonl"):
        assert (models / name).stat().st_size > 0
    report = (models / "report.html").read_text(encoding="utf-8")
    for figure in ("accuracy-0", "roc", "scores-0", "loss", "throughput", "samples"):
        assert f'<figure id="{figure}">' in report, figure
    logs = [path.read_text() for path in sorted((models / "logs").glob("rank-*.log"))]
    assert len(logs) == ranks
    losses = []
    for rank, log in enumerate(logs):
        assert f"rank {rank} of {ranks}, files in {models}" in log
        losses.append(re.findall(r"update (\d+)/3  .*?loss (\S+)", log))
        assert [update for update, _ in losses[-1]] == ["1", "2", "3"]
        assert all(math.isfinite(float(loss)) for _, loss in losses[-1])
    assert losses == [losses[0]] * ranks, "the loss of the global batch is everybody's"
    assert len({loss for _, loss in losses[0]}) == 3, "the network has changed"
    assert "VERIFICATION SET MISSING" in result.stdout + result.stderr
    assert "accuracy untrained" in result.stdout
    assert "%|" not in result.stdout, "a progress bar without a terminal"
    assert json.loads((models / "config.json").read_text())["max_update"] == 3


def processes_of(models):
    """The command lines that still name a folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(models) in line and int(folder.name) != os.getpid():
            found.append(line)
    return found


@pytest.mark.thorough
@pytest.mark.launcher
@pytest.mark.parametrize(("controller", "ranks"), [("--gloo", 2), ("--mpi", 3)])
def test_horovodrun(controller, ranks, faces, tmp_path):
    launcher = Path(sys.executable).with_name("horovodrun")
    launch = (launcher, controller, "-np", ranks, "-H", f"localhost:{ranks}", "bash", "config.sh")
    result = start(*launch, *settings(faces, tmp_path), "--max-update", 3)
    assert_trained(result, tmp_path, ranks)
    assert processes_of(tmp_path) == []


@pytest.mark.launcher
def test_run_sh(faces, tmp_path):
    result = start("bash", "run.sh", *settings(faces, tmp_path), "--max-update", 3, NP="2")
    assert_trained(result, tmp_path, 2)
    assert processes_of(tmp_path) == []


def test_one_rank_alone_with_batches_from_memory(faces, tmp_path):
    options = ("--network", "tiny", *settings(faces, tmp_path), "--max-update", 3, "--debug")
    result = run_alone(program, *options)
    assert_trained(result, tmp_path, 1)


@pytest.mark.thorough
@pytest.mark.parametrize(("network", "output"), [("r101", "FC"), ("r50-se", "GNAP")])
def test_an_update_of_a_published_network(network, output, tmp_path):
    """It changes every weight, and what is exported loads."""
    made = ("--network", network, "--net-output", output, "--seed", 4)
    data = ("--dataset", "100w", "--num-classes", 20, "--models-root", tmp_path)
    # Without weight decay, so that a weight without a gradient would stay as it is.
    length = ("--batch-size", 2, "--max-update", 1, "--wd", 0)
    result = run_alone(program, *data, *made, *length)
    assert result.returncode == 0, result.stdout + result.stderr
    options = BackboneOptions(network=network, net_output=output)
    untrained = Backbone.create(options, seed=4).parameters
    trained = Backbone.load(tmp_path / "model").parameters
    assert sorted(trained) == sorted(untrained)
    for name, parameter in untrained.items():
        values = trained[name].data().asnumpy()
        assert np.isfinite(values).all(), name
        if name.endswith("_weight"):
            assert (values != parameter.data().asnumpy()).any(), name


def test_a_run_does_not_go_on_with_another_output(tmp_path):
    words = ("--dataset", "100w", "--num-classes", 20, "--models-root", tmp_path, "--batch-size", 4)
    made = ("--network", "tiny", "--embedding-size", 16, "--max-update", 1)
    assert run_alone(program, *words, *made, "--net-output", "E").returncode == 0
    before = (tmp_path / "model-0000.params").read_bytes()
    result = run_alone(program, *words, *made, "--net-output", "FC")
    assert_one_line(result, "--net-output E there and FC here", "--models-root", "--resume never")
    assert (tmp_path / "model-0000.params").read_bytes() == before


def parameters_of(prefix):
    return {name: p.data().asnumpy() for name, p in Backbone.load(prefix).parameters.items()}


@pytest.mark.thorough
def test_frozen_tensors_keep_the_bytes_of_the_checkpoint_they_come_from(tmp_path):
    """Over updates, checkpoints and a continued run, which ends as one without a break."""
    words = ("--dataset", "100w", "--num-classes", 20, "--batch-size", 4, "--embedding-size", 16)
    made = (*words, "--network", "tiny", "--seed", 5, "--lr", 0.05)

    def run(folder, *options):
        return run_alone(program, *made, "--models-root", tmp_path / folder, *options)

    assert run("first", "--max-update", 2).returncode == 0
    before = parameters_of(tmp_path / "first/model")
    tuned = ("--pretrained", f"{tmp_path}/first/model,0", "--freeze", "conv0_*,bn0_*,stage1_*")
    assert run("whole", *tuned, "--max-update", 4, "--save-interval", 2).returncode == 0
    after = parameters_of(tmp_path / "whole/model")
    frozen = [name for name in after if name.startswith(("conv0_", "bn0_", "stage1_"))]
    assert len(frozen) == 10
    for name, expected in before.items():
        assert (after[name] == expected).all() == (name in frozen or name == "fc1_gamma"), name

    # The same in two runs. Without the frozen ones in its memory, the optimizer goes on.
    checkpoints = tmp_path / "whole/checkpoints"
    (newest,) = [path for path in checkpoints.iterdir() if path.name.endswith("4")]
    manifest = (newest / "manifest.json").read_text()
    assert "optimizer/pre_fc1_weight" in manifest and "backbone/conv0_weight" in manifest
    assert "optimizer/conv0_weight" not in manifest
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    shutil.rmtree(tmp_path / "again/checkpoints" / newest.name)
    assert run("again", *tuned, "--max-update", 4, "--save-interval", 2).returncode == 0
    for name, expected in parameters_of(tmp_path / "again/model").items():
        np.testing.assert_array_equal(expected, after[name], err_msg=name)

    # A teacher that is only measured changes nothing.
    teacher = ("--teacher", f"{tmp_path}/first/model,0", "--teacher-weight", 0, "--frequent", 1)
    measured = run("measured", *tuned, *teacher, "--max-update", 4, "--save-interval", 2)
    assert measured.returncode == 0 and "  teacher_loss " in measured.stdout
    for path in ("model-0000.params", f"checkpoints/{newest.name}/rank-0000.bin"):
        content = (tmp_path / "whole" / path).read_bytes()
        assert (tmp_path / "measured" / path).read_bytes() == content, path
    lines = (tmp_path / "measured/metrics.jsonl").read_text().splitlines()
    distances = [json.loads(line)["teacher_loss"] for line in lines]
    assert len(set(distances)) == 4 and all(0 < distance < 2 for distance in distances)
    taught = run("taught", *tuned, *teacher[:2], "--teacher-weight", 100, "--max-update", 4)
    assert taught.returncode == 0
    found = parameters_of(tmp_path / "taught/model")
    for name, expected in after.items():
        same = name in frozen or name == "fc1_gamma"
        assert (found[name] == expected).all() == same, name

    other = (*tuned[:3], "conv0_*", "--max-update", 5)
    there = "--freeze ['conv0_*', 'bn0_*', 'stage1_*'] there"
    assert_one_line(run("again", *other), there, "--resume never")
    wrong = run("new", "--freeze", "stage7_*", "--max-update", 1)
    assert_one_line(wrong, "--freeze 'stage7_*' fits no parameter", "did you mean 'stage")


@pytest.mark.thorough
@pytest.mark.launcher
def test_a_rank_with_broken_data_ends_all(faces, tmp_path):
    """More broken records than allowed, seen by one rank or the other: no rank is left waiting."""
    for name in ("train.idx", "property"):
        (tmp_path / name).symlink_to(faces / name)
    content = bytearray((faces / "train.rec").read_bytes())
    start_of_image = content.index(b"\xff\xd8\xff")
    content[start_of_image : start_of_image + 2] = b"\0\0"
    (tmp_path / "train.rec").write_bytes(content)
    result = start(
        *("bash", "run.sh", *settings(tmp_path, tmp_path / "models")),
        *("--max-update", 40, "--max-bad-records", 0),
        NP="2",
    )
    # The other rank sees its neighbor vanish and may be the first whose end mpirun notices.
    assert result.returncode != 0, result.stdout + result.stderr
    logs = [(tmp_path / "models/logs" / f"rank-{rank:04d}.log").read_text() for rank in range(2)]
    assert all("rank" in log and "update 40/40" not in log for log in logs)
    assert sum("--max-bad-records" in log for log in logs) == 1, "one rank has read the record"
    errors = [line for line in result.stderr.splitlines() if "error: " in line]
    assert sum("--max-bad-records" in line for line in errors) == 1, result.stderr
    assert not (tmp_path / "models/model-0000.params").exists()
    assert processes_of(tmp_path) == []


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
