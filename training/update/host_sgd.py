"""SGD with momentum on a CPU: one pass over weight, gradient and momentum.

MXNet's own operator for many parameters leaves the vector units of a processor idle: it takes six
times as long as memory needs. The rule is MXNet's, and so is what is kept, so that checkpoints of
one fit the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from runtime.compiled import parallel_kernel, prange
from runtime.mxnet import mx
from runtime.ndarray import memory


class _Rates(NamedTuple):
    lr: np.float32
    momentum: np.float32
    weight_decay: np.float32
    scale: np.float32


class HostSGD(mx.optimizer.Optimizer):
    """SGD with momentum for float32 parameters in the memory of the CPU.

    ``momentum = μ · momentum - lr · (gradient + wd · weight)``, which is added to the weight. The
    update is not queued: it waits for the gradients and is done when it returns.
    """

    def __init__(self, momentum: float, **settings: Any) -> None:
        """Args: momentum: above 0 and below 1; settings: of MXNet's optimizers."""
        super().__init__(**settings)
        self.momentum = momentum

    def create_state(self, index: int, weight: Any) -> Any:
        """The momentum of one parameter, zero."""
        return mx.nd.zeros_like(weight)

    def update(self, index: int, weight: Any, grad: Any, state: Any) -> None:
        """Update one parameter in place.

        Args:
            index: of the parameter.
            weight: float32 of any shape, contiguous, in the memory of the CPU.
            grad: of its shape.
            state: the momentum, of its shape.
        """
        self._update_count(index)
        rates = self._get_lr(index), self.momentum, self._get_wd(index), self.rescale_grad
        _step(
            *(memory(array).reshape(-1) for array in (weight, grad, state)),
            _Rates(*map(np.float32, rates)),
        )


def all_finite(gradients: Sequence[Any]) -> bool:
    """Whether the sum of squares of each array (float32, of the CPU) is finite; waits for them."""
    return all(
        math.isfinite(_sum_of_squares(memory(gradient).reshape(-1))) for gradient in gradients
    )


@parallel_kernel
def _step(  # type: ignore[no-untyped-def]
    weight, gradient, velocity, rates
):
    for i in prange(weight.size):
        slope = rates.scale * gradient[i] + rates.weight_decay * weight[i]
        velocity[i] = rates.momentum * velocity[i] - rates.lr * slope
        weight[i] += velocity[i]


@parallel_kernel
def _sum_of_squares(values):  # type: ignore[no-untyped-def]
    total = np.float32(0.0)
    for i in prange(values.size):
        total += values[i] * values[i]
    return total
