"""What a configuration of ``train.py`` may not be, beyond the range of each number.

Each check raises a ``ConfigError`` with the option, its value, the reason and the remedy.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from runtime.errors import ConfigError
from training.checks import check_steps
from training.config import presets

if TYPE_CHECKING:
    from training.config.faces import TrainConfig


def pretrained(value: Optional[str]) -> None:
    """Refuse what names no file of parameters."""
    if value is None:
        return
    prefix, _, epoch = value.rpartition(",")
    if not prefix or not re.fullmatch("[0-9]{1,9}", epoch):
        raise ConfigError(
            f"--pretrained {value!r} is not PREFIX,EPOCH; PREFIX-0000.params is given as PREFIX,0"
        )
    path = Path(f"{prefix}-{int(epoch):04d}.params")
    if not path.is_file():
        raise ConfigError(
            f"--pretrained {value} names {path}, which does not exist; give the prefix of a "
            "checkpoint and the number in its file's name, as in models/run/model,0"
        )


def margins(margins: Optional[tuple[float, float, float]]) -> None:
    """Refuse margins under which the target would not be harder."""
    if margins is None:
        return
    m1, m2, m3 = margins
    if m1 < 1 or not 0 <= m2 < math.pi / 2 or not 0 <= m3 < 1:
        raise ConfigError(
            f"--margins {m1:g},{m2:g},{m3:g} is out of range: "
            "m1 at least 1, m2 from 0 to below pi/2, m3 from 0 to below 1; ArcFace is 1,0.5,0"
        )
    # cos(m1 t + m2) falls with the angle t up to pi, and rises behind it: the gradient would push a
    # target that is 90 degrees from its center away from it.
    if m1 * (math.pi / 2) + m2 > math.pi:
        raise ConfigError(
            f"--margins {m1:g},{m2:g},{m3:g} turns a target at 90 degrees by "
            f"{math.degrees(m1 * math.pi / 2 + m2):.0f} degrees, and beyond 180 it is pushed away "
            "from its center: m1 * pi/2 + m2 must be at most pi; with this m2 lower m1 to at most "
            f"{2 - 2 * m2 / math.pi:.4g}"
        )


def schedule(config: TrainConfig) -> None:
    """Refuse a length or a schedule that says nothing, or two things."""
    if config.max_update is None and config.epochs is None:
        raise ConfigError("the length of the run is missing: give --max-update or --epochs")
    if config.max_update is not None and config.epochs is not None:
        raise ConfigError(
            f"--max-update {config.max_update} and --epochs {config.epochs} "
            "both give the length of the run; leave one out"
        )
    check_steps(config.lr_schedule, config.lr_steps, "updates", "10000,16000")


def world_size(config: TrainConfig) -> None:
    """Refuse a number of ranks for a run, which gets it from its launcher."""
    if config.world_size is not None and not config.dry_run:
        raise ConfigError(
            f"--world-size {config.world_size} goes with --dry-run; "
            f"a run's ranks come from the launcher: horovodrun -np {config.world_size} ..."
        )


def targets(config: TrainConfig) -> None:
    """Refuse verification sets that cannot be found."""
    if config.val_targets and not config.rec and config.dataset is not None:
        raise ConfigError(
            f"--val-targets {','.join(config.val_targets)} has no folder to be found in, "
            f"because --dataset {config.dataset} is made in memory; leave it out"
        )
    for target in config.val_targets:
        if not target or "/" in target or target.endswith(".bin"):
            raise ConfigError(
                f"--val-targets {target!r} is not a plain name: "
                "name the .bin files beside the data without folder and ending, as in lfw,cfp_fp"
            )


def data(config: TrainConfig) -> None:
    """Refuse a run whose data is missing."""
    if config.dataset is None and not config.rec:
        raise ConfigError(
            f"no data: give --dataset NAME ({', '.join(presets.PRESETS)}) or --rec DIR; "
            "--dataset synthetic needs no files"
        )
    if config.dry_run:
        if config.num_classes is None:
            raise ConfigError(
                "--dry-run reads no data: add --num-classes to say how many identities it has"
            )
    elif config.dataset == "synthetic":
        _check_drawn_set(config)
    elif not (config.debug and config.num_classes is not None):
        _check_folder(config)


def _check_drawn_set(config: TrainConfig) -> None:
    if (config.num_images or 0) < (config.num_classes or 0):
        raise ConfigError(
            f"--num-images {config.num_images} does not give each of {config.num_classes} "
            "identities an image; raise it, or lower --num-classes"
        )


def _check_folder(config: TrainConfig) -> None:
    missing = [folder for folder in config.rec if not Path(folder).exists()]
    if config.rec and not missing:
        return
    if config.dataset is None or config.rec != presets.find(config.dataset).get("rec"):
        raise ConfigError(
            f"--rec {missing[0]} does not exist; give the folder that holds train.rec"
        )
    raise ConfigError(
        f"--dataset {config.dataset} needs its record set in {missing[0]}, which does not exist; "
        "give its folder with --rec DIR, or add --debug to train without data"
    )
