"""Where the time of an update goes: data, backbone, head, communication.

MXNet computes in the background: Python queues operators and goes on. A clock around a call would
therefore measure the queuing, and the first call that waits would be charged for all of them.
So the waits are timed: each part waits for its own results before the next one begins, and only
after everything that can run in the meantime has been queued. That way the reduction of the
gradients still overlaps with the backward pass.

On the host these waits cost nothing that can be measured, and every update is measured. A device
would idle at each of them, so there one update in each report is, and the parts have in the whole
interval the shares that they have in that one.

The parts, on the rank that reports them:

- waiting: for the next batch, while this rank has nothing else to do;
- backbone: forward, backward and optimizer;
- head: the rank's own part of the softmax, and the update of its centers;
- communication: waiting for other ranks or for what they send, with no work of its own left. A
  reduction that ends before the backward pass counts nothing; a rank that is slower than the
  others shows as communication on the others.

The rest, such as writing the log, belongs to no part.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable

WAITING, BACKBONE, HEAD, COMMUNICATION = "waiting", "backbone", "head", "communication"
PARTS = (WAITING, BACKBONE, HEAD, COMMUNICATION)
_REST = "rest"


class Stopwatch:
    """Adds up seconds by part; a part inside another one is not counted in the outer.

    Attributes:
        measures: whether waits are timed now.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Args: clock: seconds from any origin."""
        self._clock, self._sampled = clock, False
        self.measures = True
        self._part = _REST
        self._since = clock()
        self._seconds = dict.fromkeys((*PARTS, _REST), 0.0)
        self._deferred: list[tuple[str, Callable[[], Any]]] = []

    def sample(self) -> None:
        """From now on measure nothing but what is between ``begin_sample`` and ``lap``."""
        self._sampled, self.measures = True, False

    def begin_sample(self) -> None:
        """Measure from here on, if not everything is; nothing is under way on the device."""
        if self._sampled:
            self.lap()
            self.measures = True

    @property
    def current(self) -> str:
        """The part that is counted now."""
        return self._part

    @contextmanager
    def part(self, part: str) -> Iterator[None]:
        """Count the time inside as that of ``part``, one of ``PARTS``."""
        outer = self._part
        self._switch(part)
        try:
            yield
        finally:
            self._switch(outer)

    def wait(self, array: Any) -> None:
        """Wait for an NDArray, for which the current part is responsible."""
        if self.measures:
            array.wait_to_read()

    def defer(self, wait: Callable[[], Any], part: str = "") -> None:
        """Leave a wait to ``settle``; counted as ``part``, by default as the current one."""
        if self.measures:
            self._deferred.append((part or self._part, wait))

    def settle(self) -> None:
        """Do the deferred waits in their order; call it when everything has been queued."""
        deferred, self._deferred = self._deferred, []
        for part, wait in deferred:
            with self.part(part):
                wait()

    def lap(self, interval: float = 0.0) -> dict[str, float]:
        """The seconds of each part since the last lap; ends a sample.

        Args:
            interval: the seconds since the last lap, without pauses. Of these a sampled part has
                the share that it has in the sample.
        """
        self._switch(self._part)
        seconds, self._seconds = self._seconds, dict.fromkeys(self._seconds, 0.0)
        factor = interval / max(sum(seconds.values()), 1e-9) if self._sampled else 1.0
        self.measures = not self._sampled
        return {part: factor * seconds[part] for part in PARTS}

    def _switch(self, part: str) -> None:
        now = self._clock()
        self._seconds[self._part] += now - self._since
        self._part, self._since = part, now
