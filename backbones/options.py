"""The options that choose a backbone or classifier, and in which number format it computes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from typing_extensions import override

import backbones
from backbones import classifiers
from runtime.errors import ConfigError
from runtime.options import POSITIVE_COUNT, Options, check_name, name, number

OUTPUTS = ("E", "F", "FC", "J", "GAP", "GDC", "GNAP")
"""Names of the layers from the last feature maps to an embedding, see ``backbones.layers``."""


def split_checkpoint(option: str, value: str) -> tuple[str, int]:
    """Return prefix and epoch of an option's PREFIX,EPOCH.

    Raises:
        ConfigError: it has another form, or names no file.
    """
    prefix, _, epoch = value.rpartition(",")
    has_form = prefix and re.fullmatch("[0-9]{1,9}", epoch)
    if not has_form or not os.path.isfile(f"{prefix}-{int(epoch):04d}.params"):
        raise ConfigError(
            f"--{option} {value!r} is not PREFIX,EPOCH of a checkpoint that exists; give "
            "models/run/model,0 for models/run/model-0000.params"
        )
    return prefix, int(epoch)


@dataclass(frozen=True)
class NetworkOptions(Options):
    """Network."""

    dtype: str = name("float32", ("float32", "float16", "bfloat16"))
    """Number format of the network: float32, float16 (GPU only, with dynamic loss scaling), or
    bfloat16 (CPUs with AVX512_BF16 or AMX only, with float32 weights)."""

    sync_bn: bool = False
    """BatchNorm by the images of all ranks, not of each rank alone: slower on several ranks."""

    freeze: tuple[str, ...] = ()
    """Parameters that are not trained, by patterns of their names, as in conv0_*,bn0_*,stage1_*. A
    BatchNorm whose running statistics fit as well keeps them, and normalizes by them."""

    def check(self) -> None:
        """Refuse BatchNorms that other ranks would need."""
        freeze = f"--freeze {','.join(self.freeze)}"
        self._exclude({"--dtype bfloat16": self.dtype == "bfloat16", freeze: self.freeze})

    def _exclude(self, others: Mapping[str, object]) -> None:
        """Refuse options that are given beside ``--sync-bn``, by their truth."""
        for option, is_given in others.items():
            if self.sync_bn and is_given:
                raise ConfigError(
                    f"--sync-bn and {option} exclude each other: ranks exchange the statistics and "
                    "gradients of every BatchNorm, of float32 maps that are computed once; leave "
                    "one of them out"
                )


@dataclass(frozen=True)
class BackboneOptions(NetworkOptions):
    """Backbone, from images to embeddings."""

    network: str = name("r50", backbones.names())
    """Backbone: {names}. Layers are as InsightFace counts them."""

    embedding_size: int = number(512, POSITIVE_COUNT)
    """Length of an embedding."""

    net_output: Optional[str] = None
    """From the last maps to the embedding, as in InsightFace: E, F, FC, GAP, GDC, GNAP or J."""

    pretrained: Optional[str] = None
    """Checkpoint PREFIX,EPOCH whose backbone the run starts from, under a new head."""

    recompute: bool = False
    """Keep few feature maps of the backbone and compute the others twice: less memory, slower."""

    accumulate: int = number(1, POSITIVE_COUNT)
    """Parts in which a rank computes its batch: the feature maps of one part at a time, all but one
    part twice; loss and gradient of the whole batch."""

    @property
    def other_output(self) -> Optional[str]:
        """``--net-output``, or None for the network's own, given or not."""
        return None if self.net_output == backbones.own_output(self.network) else self.net_output

    @override
    def check(self) -> None:
        super().check()
        if self.net_output is not None:
            check_name("net-output", self.net_output, OUTPUTS)
        accumulate = f"--accumulate {self.accumulate}"
        self._exclude({"--recompute": self.recompute, accumulate: self.accumulate > 1})
        if self.pretrained is not None:
            split_checkpoint("pretrained", self.pretrained)


@dataclass(frozen=True)
class ClassifierOptions(NetworkOptions):
    """Classifier, from images to logits."""

    model: str = ""
    """Classifier: LeNet, a model for CIFAR (ResNet18, resnet20, ...), or a name of Gluon's zoo."""

    last_gamma: bool = False
    """Begin with every residual unit as the identity: the gamma of its last BatchNorm is 0."""

    pretrained: Optional[str] = None
    """Checkpoint PREFIX,EPOCH of the same model that the run starts from; with another number of
    classes the last layer is new."""

    @override
    def check(self) -> None:
        super().check()
        classifiers.check(self.model)
        if self.pretrained is not None:
            split_checkpoint("pretrained", self.pretrained)
            if self.last_gamma:
                raise ConfigError(
                    f"--last-gamma and --pretrained {self.pretrained} exclude each other: units "
                    "that are trained are not to begin as the identity; leave one of them out"
                )
