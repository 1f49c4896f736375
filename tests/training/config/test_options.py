"""Command lines of faces and images: what follows from them, mistakes, and rates of originals."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest

from parallel.parameter_server.assignment import WORKER, Assignment, Share
from runtime import options
from runtime.errors import ConfigError
from training.config import faces, images, presets
from training.config.faces import FaceConfig
from training.config.images import HOROVOD

ALONE = None
JOB = Assignment(WORKER, "127.0.0.1", 9000, "127.0.0.1", "lo", num_workers=4, num_servers=1)
GROUPS = replace(JOB, groups=((0, 1), (2, 3)))
SHARES = replace(JOB, shares=tuple(Share(k / 4, (k + 1) / 4) for k in range(4)))
STORES = "local device nccl local_allreduce_cpu local_allreduce_device"
TOLERANT = replace(JOB, tolerates=True)
STEP = "checkpoints/update-00000002"


def of_faces(line: str) -> FaceConfig:
    return faces.parse(line.split())


def of_images(line: str) -> images.ImageConfig:
    return images.parse(line.split())


def refusal(program: Any, line: str, *parts: str) -> str:
    """Return the message of a mistake, which is one line that has these parts."""
    words = line.split()
    # Other lines get data, so that the mistake in question is the only one.
    is_whole = not words or {"--dataset", "--rec"} & {*words}
    with pytest.raises(ConfigError) as caught:
        program.parse(words if is_whole else ["--dataset", "synthetic", *words])
    message = str(caught.value)
    assert "\n" not in message and [part for part in parts if part not in message] == [], message
    return message


@pytest.mark.parametrize("preset", list(presets.PRESETS))
def test_presets_are_valid(preset: str) -> None:
    config = faces.parse(["--dataset", preset, "--dry-run"])
    assert config.data.dataset == preset and (config.data.rec == ()) == config.data.debug
    assert faces.parse(["--dataset", preset, "--dry-run", "--lr", "0.005"]).schedule.lr == 0.005


def test_values_that_follow_from_others() -> None:
    config = of_faces("--dataset synthetic --lr 0.3")
    assert config.center_lr_factor == 1.0
    assert config.backbone.embedding_size == presets.PRESETS.synthetic.embedding_size != 512
    assert not config.trains_again({"lr": 0.1})
    fixed = {"network", "net_output", "embedding_size", "loss", "optimizer", "dtype", "freeze"}
    assert {*FaceConfig.IDENTITY} == fixed <= config.values().keys()
    assert of_faces("--dataset synthetic --lr 0.3 --center-lr 0.6").center_lr_factor == 2.0
    assert of_faces("--dataset 100w --center-store d").head.center_store == "d"
    for line, expected in (
        ("--dataset synthetic --max-update 20", (20, None, 20)),
        ("--dataset 100w --epochs 2", (None, 2, 250)),
        ("--dataset synthetic --epochs 1 --num-images 400", (None, 1, 125)),
    ):
        length = of_faces(line).schedule
        assert (length.max_update, length.epochs, length.total_updates(125)) == expected
    for line, margins in (
        ("synthetic --loss softmax", (1.0, 0.0, 0.0)),
        ("synthetic --margins 1.1,0.3,0.2", (1.1, 0.3, 0.2)),
        ("webface_r50 --dry-run --loss cosface", (1.0, 0.0, 0.35)),
        ("100w --loss arcface", (1.0, 0.5, 0.0)),
        ("100w --loss cosface", (1.0, 0.0, 0.4)),
        ("100w --loss arcface --margins 1,0,0.4", (1.0, 0.0, 0.4)),
    ):
        assert of_faces(f"--dataset {line}").head.applied_margins == margins


def test_checkpoints_that_a_run_begins_with(tmp_path: Path) -> None:
    (tmp_path / "strong-0000.params").touch()
    line = f"--dataset synthetic --teacher {tmp_path}/strong,0 --teacher-weight 0"
    assert of_faces(line).teacher.checkpoint == (f"{tmp_path}/strong", 0)
    assert of_faces("--dataset synthetic").teacher.checkpoint is None
    means = f"--dataset synthetic --pretrained {tmp_path}/strong,0 --pretrained-centers"
    assert of_faces(means).head.starts_from_means
    assert not of_faces(f"{means} {tmp_path}").head.starts_from_means
    for wrong, message in (
        (f"--teacher {tmp_path}/strong,1", "--teacher .*strong,1. is not PREFIX,EPOCH"),
        ("--teacher strong", "--teacher 'strong' is not PREFIX,EPOCH"),
        ("--pretrained-centers", "--pretrained-centers without a folder takes the means"),
        (f"{means[19:]} --debug", "--pretrained-centers without a folder takes the means"),
    ):
        with pytest.raises(ConfigError, match=message):
            of_faces(f"--dataset synthetic {wrong}")


@pytest.mark.parametrize(("line", "parts"), [
    ("--loss cosfase", ["--loss", "'cosfase'", "did you mean 'cosface'?"]),
    ("--best cfp --val-targets lfw,age", ["--best cfp is no set of --val-targets (lfw, age)"]),
    ("--batch-size 64 --accumulate 5", ["--accumulate 5 does not divide the 64 images"]),
    ("--loss adaface --margins 1,0.5,0", ["--margins", "--loss adaface", "leave one out"]),
    ("--filter-threshold 0", ["--filter-threshold 0 ", "1 turns the filter off"]),
    ("--rec . --rec /nowhere", ["--rec /nowhere does not exist", "train.rec"]),
    ("--dataset emore", ["./datasets/faces_emore", "--debug"]),
    ("", ["no data", "--dataset synthetic"]),
    ("--optimizer adam", ["--optimizer adam", "--lr 1e-3 and --wd 0 for adam"]),
    ("--margins 1,-0.5,0", ["--margins 1,-0.5,0", "ArcFace is 1,0.5,0"]),
    ("--margins 3,0,0", ["--margins 3,0,0", "at most pi"]),
    ("--max-update 3 --epochs 2", ["--max-update 3", "--epochs 2", "give one of them"]),
    ("--lr-schedule poly --lr-factor 0.5", ["--lr-factor 0.5 goes with --lr-schedule step"]),
    ("--world-size 4", ["--world-size goes with --dry-run", "horovodrun -np"]),
    ("--dry-run --rec .", ["--num-classes"]),
    ("--dry-run --gpu --dtype bfloat16", ["neither bfloat16 nor --center-store"]),
    ("--dry-run --gpu --head-dtype bfloat16", ["neither bfloat16 nor --center-store"]),
    ("--dry-run --gpu --center-store d", ["neither bfloat16 nor --center-store"]),
    ("--optimizer adamw --lr 1e-3 --wd 0 --momentum 0.8", ["--momentum 0.8", "adamw"]),
    ("--teacher-weight 0.5", ["--teacher-weight 0.5", "PREFIX,EPOCH"]),
    ("--gpu", ["--gpu goes with --dry-run"]),
    ("--val-targets lfw.bin", ["'lfw.bin'", "lfw,cfp_fp"]),
    ("--num-images 399", ["--num-images 399", "400 identities"]),
])  # fmt: skip
def test_mistakes_are_one_line_with_a_remedy(line: str, parts: list[str]) -> None:
    refusal(faces, line, *parts)


def test_parsing_loads_no_framework() -> None:
    program = (
        "import sys, training.plan.faces; from training.config import faces, images\n"
        "images.parse(['--dataset', 'synthetic'])\n"
        "faces.parse(['--dataset', '100w', '--dry-run', '--world-size', '8'])\n"
        "sys.exit(7 if {'mxnet', 'horovod', 'cv2', 'numba'} & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[3], check=True)


def test_a_data_set_brings_its_recipe_and_the_command_line_wins() -> None:
    config = of_images("--dataset imagenet_steps --data-dir d --epochs 3 --model ResNet18")
    assert (config.schedule.epochs, config.classifier.model) == (3, "ResNet18")
    assert config.schedule.lr_steps == (30, 60, 80)
    for dataset in presets.RECIPES:
        files = "" if dataset == "synthetic" else " --data-dir d"
        config = of_images(f"--dataset {dataset}{files}")
        assert config.schedule.total_updates(10) == 10 * config.schedule.epochs
        assert config.data.images in ("mnist", "cifar10") or config.data.image_size
        assert config.run.models_root == f"./models/{dataset}-{config.classifier.model}"


@pytest.mark.parametrize(("line", "resume", "takes_others", "again"), [
    ("", "auto", False, False),
    ("--lr=0.01", "auto", False, False),
    ("--resume", "auto", False, False),
    ("--lr=0.01 -r", "auto", False, True),
    ("--resume anyway", "auto", True, False),
    ("--resume anyway --lr 0.01", "auto", True, True),
    (f"--resume {STEP} --lr 0.01", STEP, True, False),
])  # fmt: skip
def test_resume_with_another_rate_trains_again(line, resume, takes_others, again, tmp_path) -> None:
    config = of_images(f"--dataset cifar10 --data-dir d {line}")
    other = of_faces(f"--dataset synthetic {line.replace(' -r', ' --resume')}")
    for run in (config.run, other.run):
        assert (run.checkpoint, run.takes_other_images) == (resume, takes_others)
    assert config.trains_again({"lr": 0.1}) == again and not config.trains_again({})
    assert not again or not config.trains_again({"lr": 0.01})
    options.write(config.values(), tmp_path / "config.json")
    later = of_images(f"--config {tmp_path}/config.json --lr 0.02")
    assert later.run.resume == resume and not later.trains_again({"lr": 0.1})


def join(monkeypatch, assignment: Optional[Assignment]) -> None:
    for name, value in (assignment.variables() if assignment else {}).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("assignment", "line", "bound"), [
    (ALONE, "--kv-store horovod --fp16-allreduce --sync-bn --clip-norm 5", None),
    *((ALONE, f"--kv-store {store}", None) for store in STORES.split()),
    (JOB, "--kv-store dist_sync", None),
    (JOB, "--kv-store dist_ssync --staleness 0", 0),
    (GROUPS, "--kv-store dist_gsync --fp16-allreduce --rebalance 1", None),
    (SHARES, "--kv-store dist_async --data-allocator 1", None),
    (TOLERANT, "--kv-store dist_ssync --staleness 3", 3),
    (JOB, "--kv-store dist_ssync", 0),
])  # fmt: skip
def test_options_that_go_together_are_accepted(monkeypatch, assignment, line, bound) -> None:
    join(monkeypatch, assignment)
    found = of_images(f"--dataset synthetic {line}").exchange
    assert found.bound == bound and (assignment or found.kv_store == HOROVOD)


@pytest.mark.parametrize(("assignment", "line", "parts"), [
    (ALONE, "", ["--dataset", "synthetic"]),
    (ALONE, "--dataset cifar", ["'cifar'", "did you mean 'cifar10'?"]),
    (ALONE, "--dataset mnist", ["--data-dir"]),
    (ALONE, "--dataset imagenet", ["--rec-train", "--data-dir"]),
    (ALONE, "--dataset imagenet --rec-train a.rec", ["--rec-val"]),
    (ALONE, "--dataset imagenet --rec-train a --rec-val b --data-dir c", ["leave one out"]),
    (ALONE, "--dataset mnist --data-dir d --image-size 32", ["--image-size 32", "imagenet"]),
    (ALONE, "--data-dir d", ["--data-dir d", "mnist"]),
    (ALONE, "--dry-run --kv-store dist_sync", ["--dry-run plans runs on Horovod"]),
    (JOB, "--kv-store dist_async --staleness 3", ["--staleness 3", "dist_ssync"]),
    (ALONE, "--kv-store dist_sync", ["dist_sync", "python -m parallel.launch"]),
    (JOB, "--dataset synthetic", ["parallel.launch", "horovod", "dist_sync"]),
    (JOB, "--kv-store dist_gsync", ["dist_gsync", "--groups"]),
    (GROUPS, "--kv-store dist_gsync --sync-bn", ["--sync-bn", "horovod"]),
    (JOB, "--kv-store dist_async --data-allocator 1", ["--data-allocator 1", "sharding"]),
    (ALONE, "--data-allocator 1", ["--data-allocator 1", "horovod"]),
    (TOLERANT, "--kv-store dist_sync", ["dist_sync", "--tolerate-workers"]),
    (JOB, "--kv-store dist_async --dtype float16", ["--dtype float16 goes", "float32"]),
    (JOB, "--kv-store dist_async --clip-norm 5", ["--clip-norm goes", "horovod", "leave it out"]),
    (JOB, "--kv-store dist_async --fp16-allreduce", ["--fp16-allreduce", "dist_async"]),
    (JOB, "--kv-store dist_async --gradient-predivide-factor 2", ["predivide-factor goes"]),
    (ALONE, "--rebalance 2", ["--rebalance 2", "dist_gsync", "horovod"]),
])  # fmt: skip
def test_mistakes_are_one_line_with_the_remedy(monkeypatch, assignment, line, parts) -> None:
    join(monkeypatch, assignment)
    refusal(images, line, *parts)


def test_words_of_the_originals_are_answered_and_no_similar_one_is_suggested() -> None:
    for program, line, answer in (
        (faces, "--backbone-lr=0.1", "is not an option here: type `--lr 0.1` (docs"),
        (faces, "configs/ms1mv3_r50", "--rec ."),
        (faces, "--num_workers 4", "--threads"),
        (faces, "--loss-m3 0.4", "--margins"),
        (images, "--model resnet101_v1d", "here: type `resnet50_v1`; of GluonCV"),
    ):
        assert "did you mean" not in refusal(program, line, answer)
    message = refusal(images, "--log-dir d --gpus 0,1 --depth 20")
    assert [part.split()[0] for part in message.split("; --")] == ["--log-dir", "gpus", "depth"]


def test_options_of_grouping_sgd_that_mean_the_same_are_taken() -> None:
    line = "--dataset synthetic --network resnet20 --mom 0.5"
    for epochs in ("--num-epoch 7", "--num-epochs=7"):
        found = images.parse(f"{line} {epochs}".split()).values()
        assert (found["model"], found["momentum"], found["epochs"]) == ("resnet20", 0.5, 7)
    known = {options.option(name) for name in found}
    assert set(images.SYNONYMS.values()) <= known and not set(images.SYNONYMS) & known


def original_rate(name: str, update: int, per_epoch: int, world_size: int) -> float:
    """The first update counts as in the original's scheduler: from 1 in MXNet, 0 in PyTorch."""
    epoch = update // per_epoch
    if name == "mnist":
        return 0.01 * world_size
    if name == "cifar10":
        return 0.1 * world_size * (1 + math.cos(math.pi * epoch / 200)) / 2
    if name == "grouping":
        return 0.1 * 0.94**epoch
    # Of ImageNet one update later than MXNet's after the warm-up, whose last update has a rate of
    # 0; of faces one update later than in PyTorch's recipe within the warm-up.
    is_imagenet = name == "imagenet"
    peak, warmup, epochs = (0.1 * world_size, 10, 90) if is_imagenet else (0.3, 1, 20)
    if update < warmup * per_epoch:
        return peak * (update + 1) / (warmup * per_epoch)
    share = (update - warmup * per_epoch) / ((epochs - warmup) * per_epoch)
    return peak * (1 - share) ** (2 if is_imagenet else 1)


@pytest.mark.parametrize("world_size", [1, 8])
@pytest.mark.parametrize(("name", "line", "count", "batch_size", "epochs"), [
    ("mnist", "--dataset mnist --data-dir d", 60_000, 64, 5),
    ("cifar10", "--dataset cifar10 --data-dir d", 50_000, 128, 200),
    ("imagenet", "--dataset imagenet --data-dir d", 1_281_167, 256, 90),
    ("grouping", "--dataset cifar10 --data-dir d --lr 0.1 --lr-factor 0.94 --no-lr-scaling",
     50_000, 45, 200),
    ("faces", "--rec . --lr 0.3 --lr-schedule poly --lr-power 1 --epochs 20 --warmup {per_epoch}",
     42_474_557, 256, 20),
])  # fmt: skip
def test_rates_are_those_of_the_original(name, line, count, batch_size, epochs, world_size):
    per_epoch = count // (batch_size * world_size)
    program: Any = faces if "--rec" in line else images
    chosen = program.parse(line.format(per_epoch=per_epoch).split()).schedule
    schedule = chosen.build(world_size, per_epoch)
    total = epochs * per_epoch
    assert chosen.total_updates(per_epoch) == total
    spread = [round(share * (total - 1) / 19) for share in range(20)]
    for update in [*spread, per_epoch - 1, per_epoch, 10 * per_epoch - 1]:
        if name == "cifar10":
            # The tutorial's rate is that of the beginning of an epoch.
            update -= update % per_epoch
        expected = original_rate(name, update, per_epoch, world_size)
        assert schedule(update) == pytest.approx(expected, rel=1e-9)
