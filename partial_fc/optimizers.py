"""The optimizers of the class centers: SGD with momentum, Adam and AdamW, on the sampled rows.

All are lazy: a row that is not sampled neither decays nor moves, and its state does not change.
Each has two forms that do the same: a Numba kernel that projects the gradient and updates in one
pass over the rows, and MXNet operators for devices.

Adam corrects the bias of its moments by the number of updates that they have seen. Sampled rows
have seen different numbers, so each row has a count. With one count for all, a row that is sampled
late for the first time would get no correction and step 0.1 / sqrt(0.001), three times, too far.

Shapes: D embedding, S sampled rows, C rows of the shard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from partial_fc.bfloat16 import widened
from partial_fc.shard import STATES, RowState
from runtime.kernels import PART, parallel_kernel, prange, prefetch, product_of
from runtime.mxnet import mx

# Arrays by name: "centers" and those of ``partial_fc.shard.STATES``; on the host, on a device.
HostArrays = Mapping[str, NDArray[Any]]
DeviceArrays = Mapping[str, Any]


class RowGradients(NamedTuple):
    """The gradient with respect to the unit vectors of sampled rows, on the host.

    The latter two are arrays of MXNet until ``runtime.ndarray.queue`` hands them to a kernel.

    Attributes:
        rows: int64 [S], which rows of the shard.
        inverse_norms: float32 [S], 1 / their norms.
        gradient: [S, D], float32 or bfloat16 (see ``partial_fc.bfloat16``).
    """

    rows: NDArray[np.int64]
    inverse_norms: NDArray[np.float32]
    gradient: NDArray[Any]


class RowOptimizer(Protocol):
    """An optimizer of class centers."""

    states: Mapping[str, RowState]
    """The arrays it keeps beside the centers, by name; all start at zero."""

    def update_host(self, arrays: HostArrays, gradients: RowGradients, lr: float) -> None:
        """Update the rows of ``arrays`` ("centers" [C, D] and the states), in place."""

    def update_device(self, sampled: DeviceArrays, tangent_SD: Any, lr: float) -> None:
        """Update the NDArrays "centers" [S, D] and the states, in place.

        ``tangent_SD`` is the gradient with respect to these centers, and may be overwritten.
        """


@dataclass(frozen=True)
class SGD(RowOptimizer):
    """Momentum SGD; weight decay is added to the gradient."""

    states = STATES["sgd"]
    momentum: float
    weight_decay: float

    @override
    def update_host(self, arrays: HostArrays, gradients: RowGradients, lr: float) -> None:
        rates = np.float32(lr), np.float32(self.momentum), np.float32(self.weight_decay)
        _sgd(arrays["centers"], arrays["momenta"], *gradients, rates)

    @override
    def update_device(self, sampled: DeviceArrays, tangent_SD: Any, lr: float) -> None:
        centers, momenta = sampled["centers"], sampled["momenta"]
        decay = {"momentum": self.momentum, "wd": self.weight_decay}
        mx.nd.sgd_mom_update(centers, tangent_SD, momenta, lr=lr, **decay, out=centers)


@dataclass(frozen=True)
class Adam(RowOptimizer):
    """Adam (Kingma and Ba, ICLR 2015, algorithm 1), with a step count for each row.

    Weight decay is added to the gradient (Adam) or shrinks the centers beside it (AdamW: Loshchilov
    and Hutter, ICLR 2019, algorithm 2). The latter follows the habit of the frameworks: a step
    takes ``lr * weight_decay`` of the center, where the paper's λ stands for the product of
    ``weight_decay`` and the base learning rate.
    """

    states = STATES["adam"]
    weight_decay: float
    decoupled: bool
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def _decays(self, lr: float) -> tuple[float, float]:
        """The share of a center that is added to its gradient, and the share that it keeps."""
        if self.decoupled:
            return 0.0, 1.0 - lr * self.weight_decay
        return self.weight_decay, 1.0

    @override
    def update_host(self, arrays: HostArrays, gradients: RowGradients, lr: float) -> None:
        decay, kept = self._decays(lr)
        states = arrays["first_moments"], arrays["second_moments"], arrays["step_counts"]
        numbers = map(np.float32, (self.epsilon, decay, kept))
        rates = (lr, self.beta1, self.beta2, *numbers)
        _adam(arrays["centers"], states, *gradients, rates)

    @override
    def update_device(self, sampled: DeviceArrays, tangent_SD: Any, lr: float) -> None:
        centers, counts = sampled["centers"], sampled["step_counts"]
        first, second = sampled["first_moments"], sampled["second_moments"]
        decay, kept = self._decays(lr)
        if decay:
            tangent_SD += decay * centers
        first *= self.beta1
        first += (1 - self.beta1) * tangent_SD
        mx.nd.square(tangent_SD, out=tangent_SD)
        tangent_SD *= 1 - self.beta2
        second *= self.beta2
        second += tangent_SD
        counts += 1
        steps = counts.astype("float32").reshape((-1, 1))
        # 1 - beta^t through expm1: a difference from 1 would lose the digits of beta2.
        first_weight = -mx.nd.expm1(math.log(self.beta1) * steps)
        second_weight = -mx.nd.expm1(math.log(self.beta2) * steps)
        # The tangent's memory is free by now.
        root = mx.nd.broadcast_div(second, second_weight, out=tangent_SD)
        mx.nd.sqrt(root, out=root)
        root += self.epsilon
        step = first / first_weight
        step *= lr
        step /= root
        if kept != 1.0:
            centers *= kept
        centers -= step


def build(rule: str, momentum: float, weight_decay: float) -> RowOptimizer:
    """Build the optimizer of the class centers: a key of ``STATES``, and the momentum of SGD."""
    if rule == "sgd":
        return SGD(momentum, weight_decay)
    assert rule in ("adam", "adamw"), rule
    return Adam(weight_decay, decoupled=rule == "adamw")


@parallel_kernel
def _sgd(centers, momenta, rows, inverse_norms, gradient, rates):  # type: ignore[no-untyped-def]
    lr, momentum, weight_decay = rates
    for s in prange(rows.size):
        ahead = min(s + 2, rows.size - 1)
        row, inverse = rows[s], inverse_norms[s]
        radial = product_of(gradient[s], centers[row]) * inverse
        for start in range(0, centers.shape[1], PART):
            stop = start + PART
            prefetch(centers, rows[ahead], start, stop)
            prefetch(momenta, rows[ahead], start, stop)
            prefetch(gradient, ahead, start, stop)
            center, velocity = centers[row, start:stop], momenta[row, start:stop]
            slope = gradient[s, start:stop]
            for d in range(center.size):
                unit = center[d] * inverse
                step = inverse * (widened(slope[d]) - radial * unit) + weight_decay * center[d]
                velocity[d] = momentum * velocity[d] - lr * step
                center[d] += velocity[d]


@parallel_kernel
def _adam(centers, states, rows, inverse_norms, gradient, rates):  # type: ignore[no-untyped-def]
    first_moments, second_moments, counts = states
    lr, beta1, beta2, epsilon, decay, kept = rates
    first_share, second_share = np.float32(1.0 - beta1), np.float32(1.0 - beta2)
    first_rest, second_rest = np.float32(beta1), np.float32(beta2)
    for s in prange(rows.size):
        ahead = min(s + 2, rows.size - 1)
        row, inverse = rows[s], inverse_norms[s]
        radial = product_of(gradient[s], centers[row]) * inverse
        counts[row] += 1
        steps = counts[row]
        # Once for a row and in float64, where 1 - beta2^t keeps its digits.
        rate = np.float32(lr / (1.0 - beta1**steps))
        correction = np.float32(1.0 / np.sqrt(1.0 - beta2**steps))
        for start in range(0, centers.shape[1], PART):
            stop = start + PART
            prefetch(centers, rows[ahead], start, stop)
            prefetch(first_moments, rows[ahead], start, stop)
            prefetch(second_moments, rows[ahead], start, stop)
            prefetch(gradient, ahead, start, stop)
            center, slope = centers[row, start:stop], gradient[s, start:stop]
            first, second = first_moments[row, start:stop], second_moments[row, start:stop]
            for d in range(center.size):
                unit = center[d] * inverse
                step = inverse * (widened(slope[d]) - radial * unit) + decay * center[d]
                first[d] = first_rest * first[d] + first_share * step
                second[d] = second_rest * second[d] + second_share * step * step
            # A loop of its own: LLVM vectorizes none over five arrays of which it writes three.
            for d in range(center.size):
                root = np.sqrt(second[d]) * correction + epsilon
                center[d] = kept * center[d] - rate * first[d] / root
