"""``python -m tests.pythons``: see ``campaign``."""

from __future__ import annotations

from runtime.stopping import run_stoppable
from tests.pythons.campaign import main

if __name__ == "__main__":
    run_stoppable(main)
