"""What workers and servers say to each other beside gradients and weights.

An array travels as float32, so everything else has to: each bucket ends in a tail of five numbers.
In a push these are the version that the pusher had pulled, its learning rate, its number and a 1
(the sum of several pushes tells by it how many they were); in a pull the version of the weights. A
version takes two numbers, because float32 counts to 2^24 only. How to train is told to the servers
once, as JSON: nothing that a server receives is ever unpickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_LOW = 1 << 20

TAIL = 5
"""Numbers behind the gradients or weights of a bucket."""


class Tail(NamedTuple):
    """What stands at the end of a bucket."""

    version: int
    """Updates of the bucket that the weights have had."""
    lr: float = 0.0
    """The learning rate; of several pushes their sum."""
    pusher: int = 0
    """The number of the pusher; of several pushes it means nothing, nor does their version."""
    pushes: int = 1
    """How many pushes this is the sum of."""

    def numbers(self) -> NDArray[np.float32]:
        """As it travels: float32 [TAIL]."""
        high, low = divmod(self.version, _LOW)
        return np.array([high, low, self.lr, self.pusher, self.pushes], np.float32)

    @classmethod
    def read(cls, numbers: NDArray[np.float32]) -> Tail:
        """Understand what has travelled.

        Raises:
            ValueError: the numbers are no tail.
        """
        high, low, lr, pusher, pushes = values = numbers.tolist()
        counts = (high, low, pusher, pushes)
        # A comparison with NaN is false, and infinity is no integer.
        if not (0 <= lr < math.inf and all(0 <= n and n.is_integer() for n in counts)):
            raise ValueError(f"its tail {values} is not version, learning rate, pusher and count")
        return cls(int(high) * _LOW + int(low), lr, int(pusher), int(pushes))


@dataclass(frozen=True)
class Settings:
    """What the servers have to know before the first push."""

    momentum: float
    weight_decay: Mapping[int, float]
    """By the key of each bucket."""
    board: int
    """The key of the board."""
    pushers: int
    """How many numbers pushers may have: 0 to below this."""
    together: int = 1
    """How many pushes make an update: with BSP those of all workers, which MXNet adds."""

    def encode(self) -> str:
        """As it travels."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Settings:
        """Understand what has travelled; raises an exception for anything else."""
        told = json.loads(text)
        decay = {int(key): float(value) for key, value in told["weight_decay"].items()}
        counts = (int(told[name]) for name in ("board", "pushers", "together"))
        return cls(float(told["momentum"]), decay, *counts)
