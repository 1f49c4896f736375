"""A small network with drawn weights."""

from __future__ import annotations

from pathlib import Path

from backbones.model import Backbone
from backbones.options import BackboneOptions


def export_network(prefix: Path, side: int = 112, *, epoch: int = 0, seed: int = 0) -> Path:
    """Write the checkpoint of a network for images [3, side, side]; return its prefix."""
    options = BackboneOptions(network="tiny", embedding_size=8)
    Backbone.create(options, image_size=(side, side), seed=seed).export(prefix, epoch)
    return prefix
