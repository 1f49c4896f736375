"""The last feature maps of a body, and the names of the layers that follow them.

``backbones.outputs`` has the layers; this module is for options, which do not load MXNet.
"""

from __future__ import annotations

from typing import NamedTuple

OUTPUTS = ("E", "F", "FC", "J", "GAP", "GDC", "GNAP")
"""Names of the layers from the last feature maps to an embedding."""


class Maps(NamedTuple):
    """The last feature maps of a body, of images of 112x112 pixels."""

    channels: int
    side: int
