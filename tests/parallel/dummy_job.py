"""The launcher with workers, servers and a scheduler that are small scripts.

Run as ``python -m tests.parallel.dummy_job SERVE OPTIONS... -- COMMAND...``, where SERVE is the
Python code of servers and scheduler.
"""

from __future__ import annotations

import sys

from parallel.launch.__main__ import main
from runtime.errors import run_program

if __name__ == "__main__":
    serve = (sys.executable, "-c", sys.argv[1])
    run_program(lambda: main(sys.argv[2:], serve))
