"""The float16 network's updates on a device against plain ones that look before they change."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parallel.world import LoneWorld
from runtime.mxnet import mx
from tests.support.thread_world import run_ranks
from training.config.faces import FaceOptimizerOptions
from training.update import mixed_precision
from training.update.optimizer import BackboneOptimizer

DEVICE = mx.cpu(1)
# Those of a float16 network: products in half precision, norms in float32.
SHAPES = {
    "conv0_weight": (4, 3, 3, 3), "relu0_gamma": (4,), "bn0_gamma": (4,), "fc1_weight": (7, 11),
    "bn0_beta": (4,), "fc1_bias": (7,),
}  # fmt: skip
LR = 0.25


def dtype_of(name: str) -> str:
    return "float32" if name.startswith("bn") else "float16"


def initial(name: str) -> np.ndarray:
    generator = np.random.default_rng(len(name))
    return generator.normal(size=SHAPES[name]).astype(dtype_of(name))


def make(options: FaceOptimizerOptions, world=None) -> tuple[BackboneOptimizer, dict]:
    parameters = mx.gluon.ParameterDict()
    for name, shape in SHAPES.items():
        parameter = parameters.get(name, shape=shape, dtype=dtype_of(name))
        parameter.initialize(mx.init.Zero(), ctx=DEVICE)
        parameter.set_data(mx.nd.array(initial(name), dtype=dtype_of(name)))
        parameter.wd_mult = float(name.endswith("_weight"))
    optimizer = BackboneOptimizer(options, parameters, world or LoneWorld(), dtype="float16")
    return optimizer, parameters


def gradients_of(update: int, *, overflows: bool) -> dict[str, np.ndarray]:
    """Those of a scaled loss; the sum of two ranks is below 256, whose square is a float16."""
    generator = np.random.default_rng(update)
    found = {
        name: generator.uniform(-120, 120, shape).astype(dtype_of(name))
        for name, shape in SHAPES.items()
    }
    if overflows:
        # In each type and at each place now and then.
        name = list(SHAPES)[update % len(SHAPES)]
        found[name].flat[update % found[name].size] = (np.inf, -np.inf, np.nan)[update % 3]
    return found


class Plain:
    """The same update by update with MXNet's own operators, on the host, and with a decision."""

    def __init__(self, options: FaceOptimizerOptions) -> None:
        self.options = options
        self.scale, self.good, self.count = 2.0**13, 1998, 0
        self.masters = {name: mx.nd.array(initial(name).astype("float32")) for name in SHAPES}
        count = int(options.momentum > 0) if options.rule == "sgd" else 2
        self.states = {name: [mx.nd.zeros(s) for _ in range(count)] for name, s in SHAPES.items()}

    def update(self, gradients: dict[str, np.ndarray], lr: float) -> None:
        if not all(np.isfinite(gradient).all() for gradient in gradients.values()):
            self.scale, self.good = max(self.scale / 2, 1.0), 0
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
            arrays = enumerate([*states, *master])
            found.update({f"{name}.{n}": array.asnumpy() for n, array in arrays})
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
    ("rule", "momentum", "rounding", "part_size"),
    [("sgd", 0.9, 0.0, 10), ("sgd", 0.0, 0.0, 2**22), ("adam", 0.9, 2e-6, 10),
     ("adamw", 0.9, 2e-6, 75)],
)  # fmt: skip
def test_it_computes_what_a_decision_on_the_host_does(
    rule, momentum, rounding, part_size, monkeypatch, caplog
):
    monkeypatch.setattr(mixed_precision, "PART_SIZE", part_size)
    options = FaceOptimizerOptions(momentum=momentum, wd=0.1, optimizer=rule)
    (optimizer, parameters), plain = make(options), Plain(options)
    # Two from the rise of the scale: it rises at update 5, after two overflows.
    saved = {"loss_scale": plain.scale, "good_updates": plain.good}.__getitem__
    optimizer._loss_scale.load_state(SimpleNamespace(number=saved, count=saved))
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
    whole, whole_parameters = make(options)
    run(whole, whole_parameters, range(12), {3, 8})
    first, first_parameters = make(options)
    run(first, first_parameters, range(6), {3})
    state = first.export_state(6)
    second, second_parameters = make(options)
    # Weights are in the model's part of a checkpoint.
    for name, parameter in second_parameters.items():
        parameter.data()[:] = first_parameters[name].data()
    values = state.values.__getitem__
    second.load_state(
        SimpleNamespace(
            replicated=lambda name, shape: state.arrays[name].array.reshape(shape),
            number=values, count=values,
        )
    )  # fmt: skip
    run(second, second_parameters, range(6, 12), {8})
    for name, parameter in whole_parameters.items():
        found = second_parameters[name].data().asnumpy()
        np.testing.assert_array_equal(parameter.data().asnumpy(), found, err_msg=name)
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
