"""The float16 network's updates on a device against plain ones that look before they change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel.world import LoneWorld
from runtime.mxnet import mx
from tests.support.parameters import SavedValues, make_parameters
from tests.support.thread_world import run_ranks
from training.config.faces import FaceOptimizerOptions
from training.update import mixed_precision
from training.update.mixed_precision import LossScale
from training.update.optimizer import BackboneOptimizer

DEVICE = mx.cpu(1)
# Those of a float16 network: products in half precision, norms in float32.
SHAPES = {
    "conv0_weight": (4, 3, 3, 3), "relu0_gamma": (4,), "bn0_gamma": (4,), "fc1_weight": (7, 11),
    "bn0_beta": (4,), "fc1_bias": (7,),
}  # fmt: skip
LR = 0.25
INITIAL = 2.0**13


def dtype_of(name: str) -> str:
    return "float32" if name.startswith("bn") else "float16"


def initial(name: str) -> np.ndarray:
    generator = np.random.default_rng(len(name))
    return generator.normal(size=SHAPES[name]).astype(dtype_of(name))


def make(options: FaceOptimizerOptions, world=None) -> tuple[BackboneOptimizer, Any]:
    parameters = make_parameters({name: initial(name) for name in SHAPES}, DEVICE)
    return BackboneOptimizer(options, parameters, world or LoneWorld(), dtype="float16"), parameters


def gradients_of(update: int, *, overflows: bool) -> dict[str, np.ndarray]:
    """Those of a scaled loss; the sum of two ranks is below 256, whose square is a float16."""
    generator = np.random.default_rng(update)
    found = {n: generator.uniform(-120, 120, s).astype(dtype_of(n)) for n, s in SHAPES.items()}
    if overflows:
        # In each type and at each place now and then.
        name = list(SHAPES)[update % len(SHAPES)]
        found[name].flat[update % found[name].size] = (np.inf, -np.inf, np.nan)[update % 3]
    return found


class Plain:
    """The same update by update with MXNet's own operators, on the host, and with a decision."""

    def __init__(self, options: FaceOptimizerOptions) -> None:
        self.options = options
        self.scale, self.good, self.count = INITIAL, 1998, 0
        self.masters = {name: mx.nd.array(initial(name).astype("float32")) for name in SHAPES}
        count = int(options.momentum > 0) if options.rule == "sgd" else 2
        self.states = {name: [mx.nd.zeros(s) for _ in range(count)] for name, s in SHAPES.items()}

    def update(self, gradients: dict[str, np.ndarray], lr: float) -> None:
        if not all(np.isfinite(gradient).all() for gradient in gradients.values()):
            self.scale, self.good = self.scale / 2, 0
            return
        self.count += 1
        for name, gradient in gradients.items():
            wide = mx.nd.array(gradient.astype("float32") * np.float32(1 / self.scale))
            wd = self.options.wd * name.endswith("_weight")
            self.step(self.masters[name], wide, self.states[name], lr, wd)
        self.good += 1
        self.scale *= 2.0 if self.good % 2000 == 0 else 1.0

    def step(self, weight, gradient, states: list, lr: float, wd: float) -> None:
        rule, momentum = self.options.rule, self.options.momentum
        correction = np.sqrt(1 - 0.999**self.count) / (1 - 0.9**self.count)
        if rule == "adam":
            mx.nd.adam_update(weight, gradient, *states, lr=lr * correction, wd=wd, out=weight)
        elif rule == "adamw":
            weight *= 1 - lr * wd
            mx.nd.adam_update(weight, gradient, *states, lr=lr * correction, out=weight)
        elif states:
            more = {"lr": lr, "wd": wd, "momentum": momentum}
            mx.nd.sgd_mom_update(weight, gradient, *states, **more, out=weight)
        else:
            mx.nd.sgd_update(weight, gradient, lr=lr, wd=wd, out=weight)

    def state(self) -> dict[str, np.ndarray]:
        """As checkpoints have them: the master copy is last."""
        found = {}
        for name, states in self.states.items():
            master = [self.masters[name]] if dtype_of(name) == "float16" else []
            for number, array in enumerate([*states, *master]):
                found[f"{name}.{number}"] = array.asnumpy()
        return found


def run(optimizer: BackboneOptimizer, parameters, updates, overflows) -> list:
    """Queue updates; returns what was said of their gradients, which is read at the end."""
    said = []
    for update in updates:
        for name, gradient in gradients_of(update, overflows=update in overflows).items():
            parameters[name].grad()[:] = gradient
        said.append(optimizer.reduce(update))
        optimizer.update(update, LR / (1 + update))
    return said


@pytest.mark.parametrize(
    ("rule", "momentum", "rounding", "size"),
    [("sgd", 0.9, 0.0, 10), ("sgd", 0.0, 0.0, 2**22), ("adam", 0.9, 2e-6, 10),
     ("adamw", 0.9, 2e-6, 75)],
)  # fmt: skip
def test_it_computes_what_the_host_does(rule, momentum, rounding, size, monkeypatch, caplog):
    monkeypatch.setattr(mixed_precision, "PART_SIZE", size)
    options = FaceOptimizerOptions(momentum=momentum, wd=0.1, optimizer=rule)
    (optimizer, parameters), plain = make(options), Plain(options)
    # Two from the rise of the scale: it rises at update 5, after two overflows.
    optimizer._loss_scale.load_state(SavedValues(loss_scale=plain.scale, good_updates=plain.good))
    overflows = {2, 3, 4, 9, 14, 19, 23}
    said = run(optimizer, parameters, range(24), overflows)
    for update in range(24):
        plain.update(gradients_of(update, overflows=update in overflows), LR / (1 + update))
    for name, master in plain.masters.items():
        weight, found = master.asnumpy().astype(dtype_of(name)), parameters[name].data().asnumpy()
        assert found.dtype == weight.dtype
        step = 1e-3 if rounding and dtype_of(name) == "float16" else rounding
        np.testing.assert_allclose(found, weight, rtol=step, atol=step, err_msg=name)
    state, rtol = optimizer.export_state(24), 1e-5 if rounding else 0.0
    assert set(state.arrays) == set(plain.state())
    for name, expected in plain.state().items():
        assert state.arrays[name].array.shape == expected.shape
        np.testing.assert_allclose(state.arrays[name].array, expected, rtol=rtol, atol=rounding)
    assert state.values == {"updates": 17, "loss_scale": plain.scale, "good_updates": plain.good}
    assert plain.scale == 2.0**14 / 2**7 and plain.good == 0
    for update, reduced in enumerate(said):
        assert reduced.are_finite([number.asscalar() for number in reduced.numbers])
        assert (f"update {update + 1} skipped" in caplog.text) == (update in overflows)


@pytest.mark.parametrize("rule", ["sgd", "adam", "adamw"])
def test_it_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(rule):
    options = FaceOptimizerOptions(momentum=0.9, wd=0.1, optimizer=rule)
    (whole, expected), (first, before), (second, found) = (make(options) for _ in range(3))
    run(whole, expected, range(12), {3, 8})
    run(first, before, range(6), {3})
    # Weights are in the model's part of a checkpoint.
    for name, parameter in found.items():
        parameter.data()[:] = before[name].data()
    state = first.export_state(6)
    saved = SavedValues(state.values)
    saved.replicated = lambda name, shape: state.arrays[name].array.reshape(shape)
    second.load_state(saved)
    run(second, found, range(6, 12), {8})
    for name, parameter in expected.items():
        np.testing.assert_array_equal(parameter.data().asnumpy(), found[name].data().asnumpy())
    assert whole.export_state(12).values == second.export_state(12).values


def test_master_copies_begin_as_the_weights_that_training_starts_from():
    """Which are loaded after the optimizer is made."""
    optimizer, parameters = make(FaceOptimizerOptions(momentum=0.9, wd=0.0))
    parameters["fc1_weight"].set_data(mx.nd.full(SHAPES["fc1_weight"], 3.0, dtype="float16"))
    run(optimizer, parameters, [0], {0})
    np.testing.assert_array_equal(parameters["fc1_weight"].data().asnumpy(), 3.0)


def test_an_overflow_of_one_rank_is_skipped_by_all():
    def rank_main(world):
        optimizer, parameters = make(FaceOptimizerOptions(momentum=0.9, clip_norm=50.0), world)
        run(optimizer, parameters, range(4), {2} if world.rank else {})
        weights = [parameter.data().asnumpy().tobytes() for parameter in parameters.values()]
        return weights, optimizer.export_state(4).values

    first, second = run_ranks(2, rank_main)
    assert first == second
    assert first[1] == {"updates": 3, "loss_scale": 4096.0, "good_updates": 1}


def array(*values: float, dtype: str = "float32"):
    return mx.nd.array(values, ctx=DEVICE, dtype=dtype)


def value(scale: LossScale) -> float:
    return scale.export_state(0).values["loss_scale"]


def read(reduced) -> list[float]:
    values = [float(number.asscalar()) for number in reduced.numbers]
    assert reduced.are_finite(values), "a dynamic scale expects gradients to overflow"
    return values


def good_updates(scale: LossScale, updates: int) -> None:
    """So many good updates, of which the last is made."""
    values = SavedValues(scale.export_state(0).values)
    values["good_updates"] += updates - 1
    scale.load_state(values)
    scale.adapt(array(1.0))


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_an_overflow_halves_the_scale_and_says_which_update_is_skipped(bad, caplog):
    scale, queued = LossScale(DEVICE), []
    # Each is named with its scale after later ones are queued; gradients may be of two types.
    for update, last in enumerate((0.0, bad, bad)):
        gradients = [array(1.0, -2.0, dtype="float16"), array(1.0, last)]
        queued.append(scale.judge(gradients, update))
        scale.adapt(queued[-1].numbers[0])
    assert [read(reduced) for reduced in queued] == [[1, INITIAL], [0, INITIAL], [0, INITIAL / 2]]
    assert value(scale) == INITIAL / 4
    assert [record.getMessage() for record in caplog.records] == [
        f"update {update} skipped: a float16 gradient overflowed; loss scale now {scale}"
        for update, scale in ((2, 4096), (3, 2048))
    ]


def test_the_scale_doubles_after_every_2000_good_updates_in_a_row():
    scale = LossScale(DEVICE)
    good_updates(scale, 1999)
    scaled = scale.scaled(array(1.0, 3.0).reshape((2, 1)))
    assert scaled.asnumpy().tolist() == [[INITIAL], [3 * INITIAL]]
    # Gradients are divided by the scale that they were multiplied with.
    unscale = scale.adapt(array(1.0))
    assert value(scale) == 2 * INITIAL
    assert (scaled * unscale).asnumpy().tolist() == [[1.0], [3.0]]
    # An overflow restarts the count.
    good_updates(scale, 1999)
    scale.adapt(array(0.0))
    good_updates(scale, 1999)
    assert value(scale) == INITIAL
    good_updates(scale, 1)
    good_updates(scale, 2000)
    assert value(scale) == 4 * INITIAL
    for _ in range(40):
        scale.adapt(array(0.0))
    assert value(scale) == 1.0
