"""Ending a run on all ranks after the same update.

Somebody presses Ctrl-C, a cluster wants its machines back: the signal reaches the ranks at
different moments, or only one of them. If each ended when it notices, the others would wait for it
in a collective, and the checkpoint would be of no update at all. So the ranks tell each other after
every update whether they have been asked. The answer travels while the next update is computed and
is looked at when that one is done, which costs nothing; the run ends one update later.
"""

from __future__ import annotations

from typing import Any, Optional

from parallel.world import World
from runtime.mxnet import mx
from runtime.stopping import StopRequest


class AgreedStop:
    """Whether the run shall end, the same answer on every rank."""

    def __init__(self, request: StopRequest, world: World) -> None:
        """Args: what this rank has been asked, and the ranks."""
        self._request = request
        self._world = world
        self._asked: Optional[Any] = None

    def __call__(self) -> int:
        """Return the exit status with which all ranks end now, or 0 to go on.

        Call it once after every update, on every rank.
        """
        agreed = 0 if self._asked is None else int(self._asked.asscalar())
        self._asked = mx.nd.array([self._request.status])
        self._world.allreduce(self._asked, "loop.stop", op="max")
        return agreed
