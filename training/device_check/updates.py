"""Updates on a device against the same updates on the host: every loss, optimizer and dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from parallel.world import LoneWorld, World
from partial_fc.options import LOSSES
from partial_fc.shard import STATES
from runtime.gpu_check import Wrong, checked
from runtime.mxnet import mx
from training.config.faces import FaceOptimizerOptions
from training.device_check.subject import Subject, Trained, Training

FLOAT32, TF32, FLOAT16 = "float32", "TF32", "float16"
# Between the loss of a device and that of the host, as a share; and between what the updates change
# on either, as a share of what they change on the host. These are three times what was seen between
# two processors: for float32 with weights that differ by 1e-5 of themselves, as much as the fast
# algorithms of cuDNN may; for the others with inputs and results of every product rounded to the 11
# bits of float16 and TF32. Weights differ most, since a rounding changes the side of zero on which
# some elements before a ReLU are. It also turns Adam's first steps of weights and centers whose
# gradients are close to zero. An update that is missing or twice as large as it should be gives 1.
_FLOAT32 = {"loss": 1e-3, "weights": 0.1, "statistics": 0.005, "centers": 0.01}
_ROUNDED = {"loss": 3e-3, "weights": 0.2, "statistics": 0.01, "centers": 0.03}
_ALLOWED = {FLOAT32: _FLOAT32, TF32: _ROUNDED, FLOAT16: _ROUNDED}
_ADAM_FLOAT32 = {**_FLOAT32, "weights": 0.25, "centers": 0.25}
_ADAM_ROUNDED = {**_ROUNDED, "weights": 0.5, "centers": 0.4}
_ALLOWED_OF_ADAM = {FLOAT32: _ADAM_FLOAT32, TF32: _ADAM_ROUNDED, FLOAT16: _ADAM_ROUNDED}


def subjects() -> dict[str, Subject]:
    """What is trained, by its name in the report."""
    plain = Subject()
    losses = {loss: replace(plain, head=replace(plain.head, loss=loss)) for loss in LOSSES}
    rules = {
        rule: replace(plain, optimizer=FaceOptimizerOptions(optimizer=rule))
        for rule in STATES
        if rule != plain.optimizer.optimizer
    }
    filtered = replace(plain.head, filter_threshold=0.2)
    return {
        **losses,
        "filter": replace(plain, head=filtered),
        **rules,
        "r18": replace(plain, network="r18", image_size=112, batch_size=8, updates=1),
    }


def lines(context: Any, kinds: Sequence[str]) -> Iterator[str]:
    """Check all subjects on a device in several kinds of numbers."""
    world = LoneWorld()
    for name, subject in subjects().items():
        host = train(subject, mx.cpu(), "float32", world)
        for kind in kinds:
            yield checked(
                f"update {name} {kind}", partial(check, subject, host, context, kind, world)
            )


def check(subject: Subject, host: Trained, context: Any, kind: str, world: World) -> str:
    """Compare a subject on a device with what the host has computed; see ``judge``.

    Raises:
        NotRun: the device has no such numbers.
    """
    device = train(subject, context, "float16" if kind == FLOAT16 else "float32", world)
    errors = {"loss": loss_error(device, host)}
    errors.update({group: change_error(device, host, group) for group in host.changes})
    # Each rank has class centers of its own; all report the worst.
    worst = world.allreduce(mx.nd.array(list(errors.values())), "check.errors", op="max")
    return judge(dict(zip(errors, worst.asnumpy().tolist())), subject.optimizer.rule, kind)


def train(subject: Subject, context: Any, dtype: str, world: World) -> Trained:
    """Make the updates that are compared."""
    return Training(subject, world, context, dtype).run()


def judge(errors: Mapping[str, float], rule: str, kind: str) -> str:
    """Return the errors in one line.

    Raises:
        Wrong: some are larger than this kind of numbers explains, or no number.
    """
    allowed = (_ALLOWED if rule == "sgd" else _ALLOWED_OF_ADAM)[kind]
    shown = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
    wrong = [name for name, error in errors.items() if not error <= allowed[name]]
    if wrong:
        limits = ", ".join(f"{name} {allowed[name]:g}" for name in wrong)
        raise Wrong(f"differs from the processor by {shown}; allowed: {limits}")
    return f"differs from the processor by {shown}"


def loss_error(device: Trained, host: Trained) -> float:
    """The largest difference of a loss, as a share of the host's."""
    return float(np.max(np.abs(np.divide(device.losses, host.losses) - 1)))


def change_error(device: Trained, host: Trained, group: str) -> float:
    """The norm of the difference between two changes of a group over the norm of the host's."""
    expected, found = host.changes[group], device.changes[group]
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
