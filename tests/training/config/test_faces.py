from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from partial_fc.options import LOSSES
from runtime import options
from runtime.errors import ConfigError
from training.config import presets
from training.config.faces import FaceConfig, check, parse, resolve

ROOT = Path(__file__).parents[3]


def parse_line(line: str) -> FaceConfig:
    return parse(line.split())


@pytest.mark.parametrize("preset", list(presets.PRESETS))
def test_presets_are_valid(preset: str) -> None:
    config = parse(["--dataset", preset, "--dry-run"])
    assert config.data.dataset == preset
    assert (config.data.rec == ()) == config.data.debug
    assert parse(["--dataset", preset, "--dry-run", "--lr", "0.005"]).schedule.lr == 0.005


def test_values_that_follow_from_others() -> None:
    config = parse_line("--dataset synthetic --batch-size 64 --accumulate 4 --lr 0.3")
    assert (config.images_per_pass, config.center_lr_factor) == (16, 1.0)
    assert config.backbone.embedding_size == presets.PRESETS.synthetic.embedding_size != 512
    assert not config.trains_again({"lr": 0.1})
    fixed = {"network", "net_output", "embedding_size", "loss", "optimizer", "dtype", "freeze"}
    assert {*FaceConfig.IDENTITY} == fixed <= config.values().keys()
    assert parse_line("--dataset synthetic --lr 0.3 --center-lr 0.6").center_lr_factor == 2.0
    assert parse_line("--dataset 100w --center-store d").head.center_store == "d"
    # One length replaces the other.
    for line, expected in (
        ("--dataset synthetic --max-update 20", (20, None, 20)),
        ("--dataset 100w --epochs 2", (None, 2, 250)),
        ("--dataset synthetic --epochs 1 --num-images 400", (None, 1, 125)),
    ):
        length = parse_line(line).schedule
        assert (length.max_update, length.epochs, length.total_updates(125)) == expected


@pytest.mark.parametrize(
    ("line", "margins"),
    [
        ("synthetic --loss softmax", (1.0, 0.0, 0.0)),
        ("synthetic --margins 1.1,0.3,0.2", (1.1, 0.3, 0.2)),
        ("webface_r50 --dry-run --loss cosface", (1.0, 0.0, 0.35)),
        ("100w --loss arcface", (1.0, 0.5, 0.0)),
        ("100w --loss cosface", (1.0, 0.0, 0.4)),
        ("100w --loss arcface --margins 1,0,0.4", (1.0, 0.0, 0.4)),
    ],
)
def test_margins(line: str, margins: tuple[float, ...]) -> None:
    assert parse_line(f"--dataset {line}").head.applied_margins == margins


def test_checkpoints_that_a_run_begins_with(tmp_path: Path) -> None:
    (tmp_path / "strong-0000.params").touch()
    line = f"--dataset synthetic --teacher {tmp_path}/strong,0 --teacher-weight 0"
    assert parse_line(line).teacher.checkpoint == (f"{tmp_path}/strong", 0)
    assert parse_line("--dataset synthetic").teacher.checkpoint is None
    means = f"--dataset synthetic --pretrained {tmp_path}/strong,0 --pretrained-centers"
    assert parse_line(means).head.starts_from_means
    assert not parse_line(f"{means} {tmp_path}").head.starts_from_means
    for wrong, message in (
        ("--teacher-weight 2", "--teacher-weight 2 goes with --teacher PREFIX,EPOCH"),
        (f"--teacher {tmp_path}/strong,1", "--teacher .*strong,1 names .*0001.params, which does"),
        ("--teacher strong", "--teacher 'strong' is not PREFIX,EPOCH"),
        ("--pretrained-centers", "--pretrained-centers without a folder takes the means"),
        (f"{means[19:]} --debug", "--pretrained-centers without a folder takes the means"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_line(f"--dataset synthetic {wrong}")


def test_a_saved_configuration_is_resolved(tmp_path: Path) -> None:
    """How it is read is in tests/runtime/test_options.py."""
    file = tmp_path / "config.json"
    config = parse_line("--dataset synthetic --loss arcface --lr 0.3 --lr-steps 5,9")
    options.write(config.values(), file)
    saved = json.loads(file.read_text())
    assert set(saved) == set(options.values(config))
    assert saved["margins"] == list(LOSSES["arcface"].margins or ())
    assert saved["center_lr"] == saved["lr"] == 0.3 and saved["lr_steps"] == [5, 9]
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    # What follows from another option follows it again.
    found = parse(["--config", str(file), "--lr", "0.4", "--loss", "cosface"])
    assert found.center_lr_factor == 1
    assert found.head.applied_margins == LOSSES["cosface"].margins
    options.write(parse_line("--dataset synthetic").values(), file)
    assert json.loads(file.read_text())["loss"] == "combined"
    assert parse(["--config", str(file)]).head.applied_margins == (1.0, 0.0, 0.2)


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("--loss cosfase", ["--loss", "'cosfase'", "did you mean 'cosface'?"]),
        ("--best cfp --val-targets lfw,age", ["--best cfp is no set of --val-targets (lfw, age)"]),
        ("--best cfp --val-targets=", ["--val-targets (none are given)"]),
        ("--batch-size 64 --accumulate 5", ["--accumulate 5 does not divide the 64 images"]),
        ("--loss adaface --margins 1,0.5,0", ["--margins", "--loss adaface", "leave one out"]),
        ("--filter-threshold 0", ["--filter-threshold 0 ", "1 turns the filter off"]),
        ("--dataset syntetic", ["'syntetic'", "did you mean 'synthetic'?"]),
        ("--rec . --rec /nowhere", ["--rec /nowhere", "does not exist", "train.rec"]),
        ("--dataset emore", ["./datasets/faces_emore", "--debug"]),
        ("", ["no data", "--dataset synthetic"]),
        ("--optimizer adam", ["--optimizer adam", "--lr 1e-3 --wd 0:"]),
        ("--optimizer adamw --lr 1e-3", ["--optimizer adamw", "--wd 0.05"]),
        ("--optimizer adamw --lr 1e-3 --wd 0 --momentum 0.8", ["--momentum 0.8", "adamw"]),
        ("--save-interval -1", ["--save-interval -1", "0 saves only at the end"]),
        ("--margins 1,-0.5,0", ["--margins 1,-0.5,0", "ArcFace is 1,0.5,0"]),
        ("--margins 3,0,0", ["--margins 3,0,0", "at 90 degrees by 270", "m1 to at most 2"]),
        ("--margins 1.9,0.5,0", ["--margins 1.9,0.5,0", "pushed away", "m1 to at most 1.682"]),
        ("--max-update 3 --epochs 2", ["--max-update 3", "--epochs 2", "leave one out"]),
        ("--lr-schedule poly --lr-factor 0.5", ["--lr-factor 0.5 goes with --lr-schedule step"]),
        ("--world-size 4", ["--dry-run", "horovodrun -np 4"]),
        ("--dry-run --rec .", ["--num-classes"]),
        ("--memory 1.5", ["--memory 1.5 goes with --dry-run"]),
        ("--json", ["--json goes with --dry-run"]),
        ("--gpu", ["--gpu goes with --dry-run"]),
        ("--dry-run --gpu --dtype bfloat16", ["--dtype bfloat16 is for CPUs"]),
        ("--dry-run --gpu --center-store d", ["--center-store d is for CPUs"]),
        ("--dry-run --gpu --head-dtype bfloat16", ["--head-dtype bfloat16 is for CPUs"]),
        ("--val-targets lfw.bin", ["'lfw.bin'", "lfw,cfp_fp"]),
        ("--dataset 100w --val-targets lfw", ["--val-targets lfw", "100w"]),
        ("--num-images 399", ["--num-images 399", "400 identities"]),
    ],
)
def test_mistakes_are_one_line_with_a_remedy(line: str, parts: list[str]) -> None:
    # With data, so that the mistake in question is the only one.
    data = "--dataset synthetic" if line and "--dataset" not in line and "--rec" not in line else ""
    with pytest.raises(ConfigError) as raised:
        parse_line(f"{data} {line}")
    assert "\n" not in str(raised.value)
    for part in parts:
        assert part in str(raised.value)


def test_check_refuses_what_no_command_line_gave() -> None:
    config = resolve({"dataset": "synthetic"})
    options.check(config)
    with pytest.raises(ConfigError, match="length of the run is missing"):
        options.check(options.replace(config, epochs=None))
    with pytest.raises(ConfigError, match="no data"):
        check(resolve({}))


def test_parsing_loads_no_framework() -> None:
    """So a mistake is reported at once."""
    program = (
        "import sys, training.plan.faces; from training.config import faces, images\n"
        "images.parse(['--dataset', 'synthetic'])\n"
        "faces.parse(['--dataset', '100w', '--dry-run', '--world-size', '8'])\n"
        "sys.exit(7 if {'mxnet', 'horovod', 'cv2', 'numba'} & set(sys.modules) else 0)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
