"""Start a job with parameter servers: a scheduler, servers and workers, here or on other machines.

    python -m parallel.launch -n 4 -s 2 python classify.py --kv-store dist_async ...
    python -m parallel.launch -n 4 -s 2 -H hosts -i eth0 --launcher ssh --groups groups \
        python classify.py --kv-store dist_gsync ...

Without ``-H`` everything runs on this machine and listens on 127.0.0.1 alone. docs/grouping-sgd.md
has the files and what happens when a process dies.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from parallel.launch.launcher import SERVE, launch
from parallel.launch.options import JobOptions, add_options, parse
from parallel.parameter_server.buckets import FEWEST_ELEMENTS, LARGEST, MOST_ELEMENTS
from runtime.command_line import Parser, positive_integer
from runtime.errors import run_program


def main(argv: Optional[Sequence[str]] = None, serve: Sequence[str] = SERVE) -> int:
    """Run the job of a command line, by default this process's; returns the job's status."""
    parser = Parser(
        prog="python -m parallel.launch",
        description="Start scheduler, servers and workers; end all of them together.",
    )
    add_options(parser)
    parser.add_argument(
        "--groups",
        type=Path,
        metavar="FILE",
        help="a line for each group, the addresses of its workers separated by spaces",
    )
    parser.add_argument(
        "--data-sharding",
        type=Path,
        metavar="FILE",
        help="line k holds start and end of what one worker reads, as parts of 1 (with "
        "--data-allocator 1): the first line is for the worker with the highest address, compared "
        "as text, and so on downwards, as MXNet numbers workers; the log names each",
    )
    parser.add_argument(
        "--server-hosts",
        type=Path,
        metavar="FILE",
        help="line k holds the address and the relative speed of server k; by default the servers "
        "are on the workers' machines in turn",
    )
    parser.add_argument(
        "--tolerate-workers",
        action="store_true",
        help="go on without a worker that died; with dist_async and dist_ssync alone",
    )
    parser.add_argument(
        "--bucket-elements",
        type=_bucket_elements,
        default=LARGEST,
        metavar="N",
        help="largest number of weights that are sent as one array (%(default)s)",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FOLDER",
        help="record there the version of every push and pull, to check staleness by",
    )
    return launch(JobOptions(**parse(parser, argv)), serve)


def _bucket_elements(text: str) -> int:
    elements = positive_integer(text)
    if not FEWEST_ELEMENTS <= elements <= MOST_ELEMENTS:
        raise argparse.ArgumentTypeError(
            f"{elements} is not from {FEWEST_ELEMENTS} (MXNet's keys are limited) to "
            f"{MOST_ELEMENTS} (2 GB)"
        )
    return elements


if __name__ == "__main__":
    run_program(main)
