"""What a reader under test consists of.

A reader is right when it returns, or raises a ``UserError`` (for a file a ``DataError``, or its
kind, a ``BrokenRecordError``, which a loader counts and skips). Whatever else comes out of it
ends its process.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Optional


class Reader(NamedTuple):
    """What makes valid files, and what reads a file in a folder of its own."""

    seeds: Callable[[Path], list[bytes]]
    read: Callable[[Path, bytes], None]
    share: int
    """The relative number of inputs in a campaign: more for quicker readers."""
    make: Optional[Callable[[random.Random], bytes]] = None
    """Makes an input that is almost right; damage to the bytes is added to some."""
    is_watched: bool = True
    """False if no input can hold a program, and what is called executes some by itself."""
