"""What workers and servers send to each other beside gradients and weights.

Arrays are sent as float32, so every other number is as well: each bucket ends in a tail of five. In
a push they are the version that the pusher pulled, its learning rate, its number and a 1 (in a sum
of pushes, the count of its terms); in a pull the version of the weights. A version takes two
numbers, because float32 counts only to 2^24. The settings of training are sent once, as JSON: a
server never unpickles what it receives.
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
    """The numbers at the end of a bucket."""

    version: int
    """Updates that the bucket has had; meaningless in a sum of pushes."""
    lr: float = 0.0
    """The learning rate; in a sum of pushes, the sum of theirs."""
    pusher: int = 0
    """The number of the pusher; meaningless in a sum of pushes."""
    pushes: int = 1
    """How many pushes this is the sum of."""

    def encode(self) -> NDArray[np.float32]:
        """As it is sent: float32 [TAIL]."""
        high, low = divmod(self.version, _LOW)
        return np.array([high, low, self.lr, self.pusher, self.pushes], np.float32)

    @classmethod
    def decode(cls, numbers: NDArray[np.float32]) -> Tail:
        """Read a received tail.

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
    """The settings that the servers need before the first push."""

    momentum: float
    weight_decay: Mapping[int, float]
    """By the key of each bucket."""
    table: int
    """The key of the shared table."""
    pushers: int
    """Pushers have numbers from 0 to below this."""
    together: int = 1
    """Pushes that make an update: with BSP those of all workers, which MXNet adds."""

    def encode(self) -> str:
        """As they are sent."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Settings:
        """Read received settings; raises an exception for any other text."""
        fields = json.loads(text)
        decay = {int(key): value for key, value in fields.pop("weight_decay").items()}
        return cls(weight_decay=decay, **fields)
