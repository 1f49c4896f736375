"""Starting from a trained backbone under a new head (``--pretrained``).

Which tensors came from the checkpoint decides whether fine-tuning works at all, and a name that
does not match is easily overlooked. So each tensor is named in the log.
"""

from __future__ import annotations

import logging

from backbones.model import Backbone

_log = logging.getLogger(__name__)


def start_from(backbone: Backbone, prefix: str, epoch: int) -> None:
    """Give a backbone the weights of a checkpoint; every rank does.

    Raises:
        DataError: the file is missing or broken, nothing in it fits, or a shape differs.
    """
    taken = backbone.take_weights(prefix, epoch)
    for what, names in (
        ("loaded", taken.loaded),
        ("missing, left at their initial values", taken.missing),
        ("left over in the file", taken.left_over),
    ):
        _log.info(
            "pretrained %s: %d tensors %s%s",
            *(taken.path, len(names), what, ": " + " ".join(names) if names else ""),
        )
