"""Start a job with parameter servers: a scheduler, servers and workers, here or on other machines.

    python -m parallel.launch -n 4 -s 2 python classify.py --kv-store dist_async ...
    python -m parallel.launch -n 4 -s 2 -H hosts -i eth0 --launcher ssh --groups groups \
        python classify.py --kv-store dist_gsync ...

Without ``-H`` everything runs on this machine and listens on 127.0.0.1 alone. docs/grouping-sgd.md
has the files and what happens when a process dies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from parallel.launch.launcher import SERVE, launch
from parallel.launch.options import parse
from runtime.errors import run_program


def main(argv: Optional[Sequence[str]] = None, serve: Sequence[str] = SERVE) -> int:
    """Run the job of a command line, by default this process's; returns the job's status."""
    purpose = "Start scheduler, servers and workers; end all of them together."
    return launch(parse("parallel.launch", purpose, argv), serve)


if __name__ == "__main__":
    run_program(main)
