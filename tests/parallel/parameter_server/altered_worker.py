"""``classify.py`` with workers as slow as a test wants, on machines of any speed.

    python -m tests.parallel.parameter_server.altered_worker JSON OPTIONS...

The JSON has for each worker, by its number, what it sleeps (s): ``validate``, before its first
validation, and ``step``, before each step. ``patience`` takes the place of the watchdog's
``PAUSE_FACTOR`` after the first step, so that a test need not wait six times as long as for an
update; the first step, in which kernels may be compiled, may take minutes. ``speeds`` are those
that the workers measure at each change of the groups. A rank that waits for others is ended no
later than any other.
"""

from __future__ import annotations

import json
import os
import sys
import time

import classify
from parallel.parameter_server import assignment
from runtime.errors import run_program
from training.config import images
from training.exchange import ranks, workers
from training.log import watchdog
from training.validation import Validator


def main() -> int:
    here = assignment.find(os.environ)
    assert here is not None
    given = json.loads(sys.argv[1])
    own, changes = given.get(str(here.worker), {}), iter(given.get("speeds", ()))
    validate, measured = Validator.validate, ranks.own_speed

    def slowly(validator, update):
        time.sleep(own.pop("validate", 0))
        return validate(validator, update)

    def speed(throughput, contributors):
        assert measured(throughput, contributors) > 0
        return float(next(changes)[here.worker])

    class Slowed:
        def __init__(self, step):
            self.finish, self.prepare, self._step = step.finish, step.prepare, step

        def __call__(self, *arguments):
            time.sleep(own.get("step", 0))
            result = self._step(*arguments)
            watchdog.PAUSE_FACTOR = patience
            return result

    patience, watchdog.PAUSE_FACTOR = given.get("patience", watchdog.PAUSE_FACTOR), 60
    watchdog._WAITING_RANK_TICKS = 0
    setattr(Validator, "validate", slowly)  # noqa: B010 (a method is not to be assigned)
    setattr(workers, "own_speed", speed)  # noqa: B010 (imported there from another module)
    return classify.classify(images.parse(sys.argv[2:]), wrap=Slowed)


if __name__ == "__main__":
    run_program(main)
