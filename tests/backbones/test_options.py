"""Options that name a network or checkpoint: valid values, and errors for others."""

from __future__ import annotations

from pathlib import Path

import pytest

from backbones.options import BackboneOptions, ClassifierOptions
from runtime.errors import ConfigError


def test_a_pretrained_checkpoint_is_a_prefix_and_a_number(tmp_path: Path) -> None:
    (tmp_path / "a,b-0012.params").touch()
    options = BackboneOptions(pretrained=f"{tmp_path}/a,b,12")
    options.check()
    assert options.pretrained_checkpoint == (f"{tmp_path}/a,b", 12)
    assert BackboneOptions().pretrained_checkpoint is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("model", "'model' is not PREFIX,EPOCH"),
        ("model,", "is not PREFIX,EPOCH"),
        (",3", "is not PREFIX,EPOCH"),
        ("model,x", "is not PREFIX,EPOCH"),
        ("model,1234567890", "is not PREFIX,EPOCH"),
        ("model,3", "names model-0003.params, which does not exist"),
        ("m" * 300 + ",3", "-0003.params, which does not exist"),
    ],
)
def test_other_forms_of_pretrained_are_refused(value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BackboneOptions(pretrained=value).check()


def test_synchronized_statistics_are_not_recomputed() -> None:
    BackboneOptions(sync_bn=True).check()
    with pytest.raises(ConfigError, match="--sync-bn and --recompute exclude each other"):
        BackboneOptions(sync_bn=True, recompute=True).check()
    with pytest.raises(ConfigError, match="--sync-bn and --accumulate 2 exclude each other"):
        BackboneOptions(sync_bn=True, accumulate=2).check()


def test_synchronized_statistics_are_float32() -> None:
    for options in (BackboneOptions, ClassifierOptions):
        with pytest.raises(ConfigError, match="--sync-bn and --dtype bfloat16 exclude each other"):
            options("bfloat16", sync_bn=True).check()


def test_unknown_networks_are_refused() -> None:
    with pytest.raises(ConfigError, match="'r51' is unknown"):
        BackboneOptions(network="r51").check()
    with pytest.raises(ConfigError, match="'ResNet19' is unknown"):
        ClassifierOptions(model="ResNet19").check()
