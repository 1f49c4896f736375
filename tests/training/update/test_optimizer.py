"""The backbone's optimizer: its rules, SGD on a CPU against MXNet's, and float16 on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel.world import LoneWorld
from runtime.mxnet import mx
from tests.support.parameters import SavedValues, make_parameters
from tests.support.thread_world import run_ranks
from training.config.faces import FaceOptimizerOptions
from training.update import mixed_precision, rules
from training.update.optimizer import BackboneOptimizer

HOST, DEVICE = mx.cpu(), mx.cpu(1)
TWOS = dict.fromkeys(("fc_bias", "fc_weight"), np.float32([2, 2]))
# Those of a float16 network: products in half precision, norms in float32.
SHAPES = {
    "conv0_weight": (4, 3, 3, 3), "relu0_gamma": (4,), "bn0_gamma": (4,), "fc1_weight": (7, 11),
    "bn0_beta": (4,), "fc1_bias": (7,),
}  # fmt: skip
LR = 0.25
# The scale at first, and good updates of late: two from its rise.
INITIAL, GOOD = 2.0**13, 1998


def make(name="sgd", world=None, device=HOST, **given):
    options = FaceOptimizerOptions(momentum=0.9, wd=0.1, optimizer=name)
    parameters = make_parameters(TWOS, device)
    given = {"dtype": "float32", **given}
    return parameters, BackboneOptimizer(options, parameters, world or LoneWorld(), **given)


def train(parameters, optimizer, updates, factor=1.0):
    """Updates with gradients of factor * sum of all numbers, and learning rate 0.5."""
    for update in range(updates):
        with mx.autograd.record():
            total = sum(value.data().sum() for value in parameters.values())
            loss = optimizer.scaled(factor * total)
        loss.backward()
        optimizer.reduce(update)
        optimizer.update(update, lr=0.5)
    return parameters


def trained(world, name, updates=2, factor=1.0):
    parameters, optimizer = make(name, world)
    found = train(parameters, optimizer, updates, factor)
    return {name: value.data().asnumpy() for name, value in found.items()}


def test_a_step_of_adam_is_the_learning_rate():
    # With a constant gradient both corrected moments stay g and g², so every step is 0.5.
    result = run_ranks(2, lambda world: trained(world, "adam"))[1]
    assert result["fc_bias"] == pytest.approx(2.0 - 2 * 0.5, rel=1e-4)
    # Decay is part of the gradient of the weight (2.2, then 2.15): the direction stays the same.
    first, second = 2.0 + 0.1 * 2.0, 2.0 + 0.1 * 1.5
    moment = (0.9 * 0.1 * first + 0.1 * second) / (1 - 0.9**2)
    square = (0.999 * 0.001 * first**2 + 0.001 * second**2) / (1 - 0.999**2)
    assert result["fc_weight"] == pytest.approx(1.5 - 0.5 * moment / square**0.5, rel=1e-4)
    # AdamW decays besides: each update takes 0.5 · 0.1 of the weight and 0.5: 2 → 1.4 → 0.83.
    result = trained(LoneWorld(), "adamw")
    assert result["fc_weight"] == pytest.approx(0.83, rel=1e-4)
    # Tiny gradients: before moments are corrected, epsilon stands beside 0.03 of their size.
    size = (1 - 0.999) ** 0.5 * 1e-6
    for name in ("adam", "adamw"):
        result = trained(LoneWorld(), name, 1, 1e-6)
        assert result["fc_bias"] == pytest.approx(2.0 - 0.5 * size / (size + 1e-8), rel=1e-3)


@pytest.mark.parametrize(("device", "bad"), [(HOST, 1e30), (DEVICE, np.nan)])
def test_a_bad_gradient_is_remembered_when_it_is_overwritten(bad, device):
    parameters, optimizer = make(device=device)
    gradient = parameters["fc_bias"].grad()
    gradient[:] = bad
    assert optimizer.scaled(gradient) is gradient
    reduced = optimizer.reduce(0)
    if device == HOST:
        optimizer.update(0, lr=0.5)
        assert parameters["fc_bias"].data().asnumpy().tolist() == [2.0, 2.0]
    # The next backward pass comes before the step asks.
    gradient[:] = 1.0
    for one, is_finite in ((reduced, False), (optimizer.reduce(1), True)):
        assert [(n.context, n.shape) for n in one.numbers] == [(DEVICE, (1,))] * (device == DEVICE)
        assert one.are_finite([number.asscalar() for number in one.numbers]) == is_finite


@pytest.mark.parametrize(("dtype", "device"), [("float32", HOST), ("float16", DEVICE)])
def test_a_parameter_that_is_not_trained_has_no_memory_and_is_not_sent(dtype, device):
    sent, world = [], LoneWorld()
    world.allreduce_all = lambda arrays, name, **more: sent.append(len(arrays))
    parameters = make_parameters(TWOS, device)
    parameters["fc_bias"].grad_req = "null"
    options = FaceOptimizerOptions(momentum=0.9, wd=0.1)
    optimizer = BackboneOptimizer(options, parameters, world, dtype=dtype)
    train(parameters, optimizer, updates=1)
    arrays = optimizer.export_state(1).arrays
    assert {name.partition(".")[0] for name in arrays} == {"fc_weight"} and sent == [1]
    assert parameters["fc_bias"].data().asnumpy().tolist() == [2.0, 2.0]
    assert parameters["fc_weight"].data().asnumpy()[0] < 2.0


def test_one_bad_number_among_many_is_seen():
    values = np.ones(100_003, np.float32)
    # The square of 1e30 is no float32.
    for number in (1.0, np.nan, np.inf, -np.inf, 1e30):
        values[77_777] = number
        assert rules.all_finite([mx.nd.zeros((2, 2)), mx.nd.array(values)]) == (number == 1)


def dtype_of(name: str) -> str:
    return "float32" if name.startswith("bn") else "float16"


def initial(name: str) -> np.ndarray:
    return np.random.default_rng(len(name)).normal(size=SHAPES[name]).astype(dtype_of(name))


def make_half(options) -> tuple[BackboneOptimizer, Any]:
    parameters = make_parameters({name: initial(name) for name in SHAPES}, DEVICE)
    return BackboneOptimizer(options, parameters, LoneWorld(), dtype="float16"), parameters


def gradients_of(update: int, *, overflows: bool) -> dict[str, np.ndarray]:
    """Those of a scaled loss; the sum of two ranks is below 256, whose square is a float16."""
    generator = np.random.default_rng(update)
    found = {n: generator.uniform(-120, 120, s).astype(dtype_of(n)) for n, s in SHAPES.items()}
    if overflows:
        name = list(SHAPES)[update % len(SHAPES)]
        found[name].flat[update % found[name].size] = (np.inf, -np.inf, np.nan)[update % 3]
    return found


def run(optimizer: BackboneOptimizer, parameters, updates, overflows) -> list:
    said = []
    for update in updates:
        for name, gradient in gradients_of(update, overflows=update in overflows).items():
            parameters[name].grad()[:] = gradient
        said.append(optimizer.reduce(update))
        optimizer.update(update, LR / (1 + update))
    return said


def plain(options: FaceOptimizerOptions, overflows) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return weights and states after float32 updates, without those that overflow; the scale."""
    values = {name: initial(name).astype("float32") for name in SHAPES}
    parameters = make_parameters(values, DEVICE)
    optimizer = BackboneOptimizer(options, parameters, LoneWorld(), dtype="float32")
    scale, good = INITIAL, GOOD
    for update in range(24):
        if update in overflows:
            scale, good = scale / 2, 0
            continue
        for name, gradient in gradients_of(update, overflows=False).items():
            parameters[name].grad()[:] = gradient.astype("float32") / scale
        optimizer.reduce(update)
        optimizer.update(update, LR / (1 + update))
        good += 1
        scale *= 2.0 if good == 2000 else 1.0
    state = optimizer.export_state(24)
    found = {name: stored.array for name, stored in state.arrays.items()}
    masters = {name: parameter.data().asnumpy() for name, parameter in parameters.items()}
    # A master copy comes after the states.
    last = rules.num_states(options)
    found |= {f"{name}.{last}": masters[name] for name in SHAPES if dtype_of(name) == "float16"}
    return masters, {**found, **state.values, "loss_scale": scale, "good_updates": good}


@pytest.mark.parametrize(("given", "rounding", "size"), [
    ({}, 0.0, 10),
    ({"momentum": 0.0, "clip_norm": 0.1}, 2e-6, 2**22),
    ({"clip_norm": 0.1}, 2e-6, 75),
    ({"optimizer": "adam"}, 2e-6, 10),
    ({"optimizer": "adamw"}, 2e-6, 75),
])  # fmt: skip
def test_it_computes_what_float32_does_and_goes_on_from_a_checkpoint(
    given, rounding, size, monkeypatch, caplog
):
    monkeypatch.setattr(mixed_precision, "PART_SIZE", size)
    options = FaceOptimizerOptions(**{"momentum": 0.9, "wd": 0.1, **given})
    (first, before), (optimizer, parameters) = make_half(options), make_half(options)
    first._updates.load(SavedValues(updates=0, loss_scale=INITIAL, good_updates=GOOD))
    overflows = {2, 3, 4, 9, 14, 19, 23}
    said = run(first, before, range(12), overflows)
    state = first.export_state(12)
    saved = SavedValues(state.values)
    saved.replicated = lambda name, shape: state.arrays[name].array.reshape(shape)
    for name, parameter in parameters.items():
        parameter.data()[:] = before[name].data()
    optimizer.load_state(saved)
    said += run(optimizer, parameters, range(12, 24), overflows)
    masters, expected = plain(options, overflows)
    for name, master in masters.items():
        weight, found = master.astype(dtype_of(name)), parameters[name].data().asnumpy()
        assert found.dtype == weight.dtype
        step = 1e-3 if rounding and dtype_of(name) == "float16" else rounding
        np.testing.assert_allclose(found, weight, rtol=step, atol=step, err_msg=name)
    state, rtol = optimizer.export_state(24), 1e-5 if rounding else 0.0
    for name, stored in state.arrays.items():
        array = expected.pop(name)
        assert stored.array.shape == array.shape
        np.testing.assert_allclose(stored.array, array, rtol=rtol, atol=rounding)
    assert state.values == expected
    assert expected == {"updates": 17, "loss_scale": 2.0**14 / 2**7, "good_updates": 0}
    for reduced in said:
        assert reduced.are_finite([number.asscalar() for number in reduced.numbers])
    assert caplog.messages == [
        f"update {update + 1} skipped: a float16 gradient overflowed; loss scale now {2**13 >> n}"
        for n, update in enumerate(sorted(overflows))
    ]


def test_master_copies_begin_as_the_weights_that_training_starts_from():
    optimizer, parameters = make_half(FaceOptimizerOptions(momentum=0.9, wd=0.0))
    parameters["fc1_weight"].set_data(mx.nd.full(SHAPES["fc1_weight"], 3.0, dtype="float16"))
    run(optimizer, parameters, [0], {0})
    np.testing.assert_array_equal(parameters["fc1_weight"].data().asnumpy(), 3.0)


def test_the_scale_stays_above_1():
    optimizer, parameters = make_half(FaceOptimizerOptions(momentum=0.9))
    optimizer._updates.load(SavedValues(updates=0, loss_scale=1.0, good_updates=7))
    run(optimizer, parameters, [2], {2})
    assert optimizer.export_state(3).values == {"updates": 0, "loss_scale": 1.0, "good_updates": 0}
