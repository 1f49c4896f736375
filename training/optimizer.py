"""The backbone's optimizer: gradients summed over the ranks, then SGD on every rank alike.

The head's loss is the mean over the global batch and its gradient the exact one of that mean, so
what the ranks' backbones compute are addends. They are summed, not averaged; nothing else in the
program scales a gradient, save for the loss scale of float16.
"""

from __future__ import annotations

from typing import Any

from parallel.world import World
from runtime.mxnet import mx
from training.precision import LossScale


class BackboneOptimizer:
    """Momentum SGD over the ranks; parameters with ``wd_mult`` 0 do not decay."""

    def __init__(
        self, parameters: Any, world: World, *, momentum: float, weight_decay: float, dtype: str
    ) -> None:
        """Make rank 0's parameters everybody's, and set up the optimizer.

        Args:
            parameters: a ``gluon.ParameterDict``; those with ``grad_req`` "null" are left alone.
            world: the ranks.
            momentum: of SGD.
            weight_decay: of SGD, times each parameter's ``wd_mult``.
            dtype: the network's; float16 gets a float32 copy of its weights and a loss scale.
        """
        self._world = world
        for name, parameter in parameters.items():
            world.broadcast(parameter.data(), f"backbone.initial.{name}")
        settings = {
            "learning_rate": 0.0,
            "momentum": momentum,
            "wd": weight_decay,
            "multi_precision": dtype == "float16",
        }
        self._trainer = mx.gluon.Trainer(parameters, "sgd", settings, kvstore=None)
        self._gradients = [
            parameter.grad() for parameter in parameters.values() if parameter.grad_req != "null"
        ]
        self.loss_scale = LossScale(dynamic=dtype == "float16")

    def step(self, update: int, lr: float) -> None:
        """Sum the gradients of the last backward pass over the ranks, and update."""
        self._world.allreduce_all(self._gradients, "backbone.gradient")
        if self.loss_scale.accept(self._gradients, update):
            self._trainer.set_learning_rate(lr)
            self._trainer.update(self.loss_scale.value)
