"""Starting ranks from a test."""

from __future__ import annotations

import os

from runtime.environment import settings


def clean_environment() -> dict[str, str]:
    """This process's environment without what the import of MXNet put into it.

    Ranks have to choose for themselves: their threads are a share of the host's.
    """
    ours = set(settings())
    return {name: value for name, value in os.environ.items() if name not in ours}
