"""Whole jobs with parameter servers under load, and every staleness computed again.

    python -m tests.soak --scheme asp|ssp|gsp|all --minutes 10 --workers 4 --servers 1,3

An ordinary job of classify.py trains on single images, with many small buckets, while two other
processes keep the processors busy, and is stopped by a signal after some minutes of training. No
process may have died, no message may have been refused, and every staleness has to be the one that
a replay of the job's trace computes. Each job prints one line; the status is 1 if anything was
wrong. A signal to this program ends its job first.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from runtime.stopping import StopRequest
from tests.soak import soak


def main(argv: Sequence[str] | None = None) -> int:
    """Run the jobs of a command line; returns 1 if something is wrong."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.soak")
    parser.add_argument("--scheme", choices=[*soak.SCHEMES, "all"], default="all")
    parser.add_argument("--minutes", type=float, default=10, help="of training, for each scheme")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", default="1", help="their number, or several: 1,3")
    options = parser.parse_args(argv)
    schemes = list(soak.SCHEMES) if options.scheme == "all" else [options.scheme]
    request, is_well = StopRequest(), True
    request.listen()
    with tempfile.TemporaryDirectory() as folder, soak.busy_loops(2):
        for servers, scheme in itertools.product(map(int, options.servers.split(",")), schemes):
            result = soak.run(
                scheme,
                Path(folder, f"{scheme}-{servers}"),
                seconds=60 * options.minutes,
                workers=options.workers,
                servers=servers,
                is_stopped=lambda: request.status != 0,
            )
            print(result, flush=True)
            is_well &= result.is_well
            if request.status:
                break
    return request.status or int(not is_well)


if __name__ == "__main__":
    sys.exit(main())
