"""``classify.py`` whose workers measure given speeds, however busy the machine of a test is.

Run as ``python -m tests.support.made_up_speeds 100,25/50,50 OPTIONS...``: the speed of each worker
at the first change of the groups, at the second and so on.
"""

from __future__ import annotations

import os
import sys

import classify
from parallel.parameter_server import assignment
from runtime.errors import run_program
from training.config import images
from training.exchange import ranks, workers


def main() -> int:
    here = assignment.find(os.environ)
    assert here is not None
    changes = iter(sys.argv[1].split("/"))
    measured = ranks.own_speed

    def given(throughput, contributors):
        assert measured(throughput, contributors) > 0
        return float(next(changes).split(",")[here.worker])

    setattr(workers, "own_speed", given)  # noqa: B010 (imported there from another module)
    return classify.classify(images.parse(sys.argv[2:]))


if __name__ == "__main__":
    run_program(main)
