"""``python -m tests.newcomer``: see ``walk``."""

from __future__ import annotations

from runtime.stopping import run_stoppable
from tests.newcomer.walk import main

if __name__ == "__main__":
    run_stoppable(main)
