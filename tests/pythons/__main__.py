"""``python -m tests.pythons``: see ``campaign``."""

from runtime.errors import run_stoppable
from tests.pythons.campaign import main

run_stoppable(main)
