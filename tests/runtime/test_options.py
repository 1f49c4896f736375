"""The ends of every option's range: the last value that is taken and the first that is not."""

from __future__ import annotations

import dataclasses

import pytest

from runtime.errors import ConfigError
from training.checks import check_steps
from training.config import faces as config
from training.config import images as classify_config
from training.config.faces import TrainConfig
from training.config.images import ClassifyConfig

SHARED = {
    "num_classes": ([2], [1]),
    "num_images": ([1], [0]),
    "threads": ([0], [-1]),
    "momentum": ([0.0, 0.999], [-0.001, 1.0]),
    "wd": ([0.0], [-1e-6]),
    "epochs": ([1], [0]),
    "frequent": ([1], [0]),
    "stall_timeout": ([1], [0]),
    "keep": ([0], [-1]),
    "seed": ([0, 2**32 - 1], [-1, 2**32]),
    "batch_size": ([1], [0]),
    "lr": ([1e-9], [0.0]),
}
FACES = {
    **SHARED,
    "min_images": ([0], [-1]),
    "color_jitter": ([0.0, 1.0], [-0.01, 1.01]),
    "cutout": ([0.0, 1.0], [-0.01, 1.01]),
    "max_bad_records": ([0], [-1]),
    "embedding_size": ([1], [0]),
    "scale": ([1e-3], [0.0]),
    "filter_threshold": ([1e-3, 1.0], [0.0, 1.01]),
    "sample_ratio": ([1e-3, 1.0], [0.0, 1.01]),
    "center_lr": ([1e-9], [0.0]),
    "warmup": ([0], [-1]),
    "max_update": ([1], [0]),
    "verbose": ([1], [0]),
    "save_interval": ([0], [-1]),
    "world_size": ([1], [0]),
}
CLASSIFIERS = {
    **SHARED,
    "image_size": ([8], [7]),
    "warmup_epochs": ([0.0], [-0.1]),
    "label_smoothing": ([0.0, 0.999], [-0.01, 1.0]),
    "mixup": ([0.0], [-0.01]),
    "staleness": ([0], [-1]),
    "data_allocator": ([0, 1], [-1, 2]),
    "rebalance": ([1], [0]),
    "num_examples": ([1], [0]),
    "gradient_predivide_factor": ([1e-3], [0.0]),
    "eval_frequency": ([1], [0]),
    "save_frequency": ([0], [-1]),
}
# With what a value of this option is asked for at all.
GOES_WITH = {
    "epochs": {"max_update": None},
    "world_size": {"dry_run": True, "num_classes": 9},
    "staleness": {"kv_store": "dist_ssync"},
}


def cases(ranges):
    return [
        (name, value, is_allowed)
        for name, (allowed, refused) in ranges.items()
        for values, is_allowed in ((allowed, True), (refused, False))
        for value in values
    ]


def ends_in_range_error(check, configuration, name: str) -> bool:
    """Whether it is refused with the name of the option; another reason is none of this test."""
    try:
        check(configuration)
    except ConfigError as error:
        return str(error).startswith(f"--{name.replace('_', '-')} ") and " must " in str(error)
    return False


@pytest.mark.parametrize("name, value, is_allowed", cases(FACES))
def test_ranges_of_faces(name: str, value: float, is_allowed: bool) -> None:
    plain = TrainConfig(dataset="synthetic", max_update=5)
    changed = dataclasses.replace(plain, **{name: value, **GOES_WITH.get(name, {})})
    assert ends_in_range_error(config.check, changed, name) != is_allowed
    if is_allowed and name != "num_classes":
        config.check(changed)


@pytest.mark.parametrize("name, value, is_allowed", cases(CLASSIFIERS))
def test_ranges_of_classifiers(name: str, value: float, is_allowed: bool) -> None:
    plain = classify_config.resolve({"dataset": "synthetic"})
    changed: ClassifyConfig = dataclasses.replace(plain, **{name: value})
    assert ends_in_range_error(classify_config.check, changed, name) != is_allowed


def test_every_range_is_tested() -> None:
    assert set(config._RANGES) == set(FACES)
    assert set(classify_config._RANGES) == set(CLASSIFIERS)


def test_steps_of_the_learning_rate() -> None:
    check_steps("step", (1, 2), "updates", "10,20")
    check_steps("poly", (), "updates", "10,20")
    for schedule, steps in (("step", ()), ("step", (0, 2)), ("poly", (2, 2)), ("poly", (3, 2))):
        with pytest.raises(ConfigError, match="--lr-s.*, as in 10,20"):
            check_steps(schedule, steps, "updates", "10,20")
