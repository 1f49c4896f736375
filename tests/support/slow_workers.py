"""``classify.py`` on machines of which some are slow: each rests before each of its steps.

Run as ``python -m tests.support.slow_workers SECONDS,SECONDS,... OPTIONS...``, a number for each
worker.
"""

from __future__ import annotations

import os
import sys
import time

import classify
from parallel.parameter_server import place
from runtime.errors import run_program
from training import classify_config


def main() -> int:
    here = place.find(os.environ)
    assert here is not None
    seconds = float(sys.argv[1].split(",")[here.worker])

    def slow(step):
        def rest_and_step(batch, update, lr):
            time.sleep(seconds)
            return step(batch, update, lr)

        return rest_and_step

    return classify.classify(classify_config.parse(sys.argv[2:]), dress=slow)


if __name__ == "__main__":
    run_program(main)
