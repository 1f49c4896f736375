"""``python -m tests.fuzz``: see ``campaign``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Optional

from runtime import processors
from tests.fuzz import campaign
from tests.fuzz.readers import READERS


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run a campaign, or one input; return 1 if something was found."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m tests.fuzz")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=processors.available())
    parser.add_argument("--only", default=",".join(READERS), metavar="READER,READER")
    parser.add_argument("--reproduce", metavar="READER:NUMBER")
    options = parser.parse_args(argv)
    began = time.monotonic()
    if options.reproduce:
        name, _, number = options.reproduce.partition(":")
        results = {name: campaign.run_range(name, int(number), int(number) + 1)}
    else:
        shares = {name: READERS[name].share for name in options.only.split(",")}
        results = campaign.run(shares, options.inputs, options.seed, options.processes)
    print(campaign.describe(results, time.monotonic() - began))
    return 0 if all(result.is_clean for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
