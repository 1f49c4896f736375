from __future__ import annotations

import pytest

from runtime import options
from runtime.errors import ConfigError
from training.config.faces import parse as parse_faces
from training.config.images import parse
from training.config.presets import RECIPES


def parse_line(line: str):
    return parse(line.split())


def test_a_data_set_brings_its_recipe_and_the_command_line_wins() -> None:
    config = parse_line("--dataset imagenet_steps --data-dir d --epochs 3 --model ResNet18")
    assert (config.schedule.epochs, config.classifier.model) == (3, "ResNet18")
    assert config.schedule.lr_steps == (30, 60, 80)
    for dataset in RECIPES:
        files = "" if dataset == "synthetic" else " --data-dir d"
        config = parse_line(f"--dataset {dataset}{files}")
        assert config.schedule.total_updates(10) == 10 * config.schedule.epochs
        assert config.data.images in ("mnist", "cifar10") or config.data.image_size
        assert config.run.models_root == f"./models/{dataset}-{config.classifier.model}"


STEP = "checkpoints/update-00000002"


@pytest.mark.parametrize(
    ("line", "resume", "takes_others", "again"),
    [
        ("", "auto", False, False),
        ("--lr=0.01", "auto", False, False),
        ("--resume", "auto", False, False),
        ("--resume --lr=0.01", "auto", False, True),
        ("--lr=0.01 -r", "auto", False, True),
        ("--resume anyway", "auto", True, False),
        ("--resume anyway --lr 0.01", "auto", True, True),
        ("--resume never --lr 0.01", "never", True, False),
        (f"--resume {STEP} --lr 0.01", STEP, True, False),
    ],
)
def test_resume_with_another_rate_trains_again(line, resume, takes_others, again, tmp_path) -> None:
    config = parse_line(f"--dataset cifar10 --data-dir d {line}")
    of_faces = parse_faces(f"--dataset synthetic {line.replace(' -r', ' --resume')}".split())
    for run in (config.run, of_faces.run):
        assert (run.resume, run.takes_other_images) == (resume, takes_others)
    assert config.trains_again({"lr": 0.1}) == again and not config.trains_again({})
    # Typed again, or by --restarts.
    assert not again or not config.trains_again({"lr": 0.01})
    # No later run does so because of the file that this one writes.
    options.write(config.values(), tmp_path / "config.json")
    later = parse_line(f"--config {tmp_path}/config.json --lr 0.02")
    assert later.run.resume == resume and not later.trains_again({"lr": 0.1})


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("", ["--dataset", "synthetic"]),
        ("--dataset cifar", ["'cifar'", "did you mean 'cifar10'?"]),
        ("--dataset mnist", ["--data-dir"]),
        ("--dataset imagenet", ["--rec-train", "--data-dir"]),
        ("--dataset imagenet --rec-train a.rec", ["--rec-val"]),
        ("--dataset imagenet --rec-train a --rec-val b --data-dir c", ["leave one out"]),
        ("--dataset mnist --data-dir d --image-size 32", ["--image-size 32", "imagenet"]),
        ("--dataset synthetic --data-dir d", ["--data-dir d", "mnist"]),
        ("--dataset synthetic --model ResNet19", ["ResNet18"]),
        ("--dataset synthetic --dtype bf16", ["--dtype 'bf16'", "float32"]),
        ("--dataset synthetic --dry-run --kv-store dist_sync", ["--dry-run plans runs on Horovod"]),
    ],
)
def test_mistakes_are_one_line_with_the_remedy(line: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_line(line)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)
