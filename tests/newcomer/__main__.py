"""``python -m tests.newcomer``: see ``walk``."""

from runtime.errors import run_stoppable
from tests.newcomer.walk import main

run_stoppable(main)
