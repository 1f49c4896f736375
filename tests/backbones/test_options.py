from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backbones.options import (
    BackboneOptions,
    ClassifierOptions,
    NetworkOptions,
    split_checkpoint,
)
from runtime.errors import ConfigError


def test_options_that_are_taken(tmp_path: Path) -> None:
    (tmp_path / "a,b-0012.params").touch()
    BackboneOptions(pretrained=f"{tmp_path}/a,b,12", net_output="E").check()
    assert split_checkpoint("pretrained", f"{tmp_path}/a,b,12") == (f"{tmp_path}/a,b", 12)
    BackboneOptions(sync_bn=True).check()
    # Units that are trained do not begin as the identity.
    options = ClassifierOptions(model="ResNet18", pretrained=f"{tmp_path}/a,b,12", last_gamma=True)
    with pytest.raises(ConfigError, match="--last-gamma and --pretrained .*a,b,12 exclude"):
        options.check()
    # The network's own output is no other.
    assert BackboneOptions(network="r50", net_output="FC").other_output is None
    assert BackboneOptions(network="mbf", net_output="FC").other_output == "FC"


SYNC: Any = {"sync_bn": True}


@pytest.mark.parametrize(("options", "message"), [
    (BackboneOptions(pretrained="model"), "--pretrained 'model' is not PREFIX,EPOCH"),
    (BackboneOptions(pretrained=",3"), "is not PREFIX,EPOCH"),
    (BackboneOptions(pretrained="model,x"), "is not PREFIX,EPOCH"),
    (BackboneOptions(pretrained="model,1234567890"), "is not PREFIX,EPOCH"),
    (BackboneOptions(pretrained="model,3"), "names model-0003.params, which does not exist"),
    (BackboneOptions(pretrained="m" * 300 + ",3"), "-0003.params, which does not exist"),
    (ClassifierOptions(pretrained="none,2", model="LeNet"), "none,2 names none-0002"),
    (BackboneOptions(recompute=True, **SYNC), "--sync-bn and --recompute exclude each other"),
    (BackboneOptions(accumulate=2, **SYNC), "--sync-bn and --accumulate 2 exclude each other"),
    (BackboneOptions("bfloat16", **SYNC), "--sync-bn and --dtype bfloat16 exclude each other"),
    (ClassifierOptions("bfloat16", **SYNC), "--sync-bn and --dtype bfloat16 exclude each"),
    (BackboneOptions(freeze=("a*", "b"), **SYNC), r"--sync-bn and --freeze a\*,b exclude"),
    (BackboneOptions(freeze=("a", "")), "--freeze 'a,' has an empty pattern"),
    (BackboneOptions(network="r51"), "'r51' is unknown"),
    (BackboneOptions(net_output="GNP"), "--net-output 'GNP' is unknown .did you mean 'GNAP'"),
    (ClassifierOptions(model="ResNet19"), "'ResNet19' is unknown"),
])
def test_options_that_are_refused(options: NetworkOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options.check()
