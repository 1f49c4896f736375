"""The hook sees every way in which an operator is called, and refuses arrays of two devices."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.mxnet import mx
from tests.device.operator_calls import watched_operators
from tests.device.updates import DEVICE, HOST


def array(context, dtype="float32"):
    return mx.nd.array(np.ones((2, 2)), ctx=context, dtype=dtype)


def test_calls_are_told_with_their_place():
    one, other = array(DEVICE), array(DEVICE)
    with watched_operators() as calls:
        total = one + other
    (call,) = calls
    assert call.operator in ("broadcast_add", "elemwise_add") and total.context == DEVICE
    assert [tuple(found) for found in call.arrays] == [("cpu(1)", "float32")] * 3
    assert call.site.startswith("tests/device/test_operator_calls.py:")


def test_an_operator_on_two_devices_is_refused():
    one, other = array(HOST), array(DEVICE)
    with watched_operators(), pytest.raises(AssertionError, match=r"add has arrays on cpu\(0\), c"):
        one + other


def test_outputs_are_looked_at():
    one, other = array(DEVICE), array(HOST)
    with watched_operators(), pytest.raises(AssertionError, match="exp has arrays on"):
        mx.nd.exp(one, out=other)


def test_copies_between_devices_are_allowed():
    with watched_operators() as calls:
        copy = array(HOST).as_in_context(DEVICE)
        copy.copyto(array(HOST))
    assert [call.operator for call in calls] == ["_copyto", "_copyto"]


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_wide_types_are_refused_on_a_device(dtype):
    on_host = array(HOST, dtype)
    on_device = array(DEVICE)
    with watched_operators():
        on_host + on_host
        with pytest.raises(AssertionError, match=f"{dtype} array on cpu"):
            on_device.astype(dtype)


def test_an_operator_without_a_gpu_kernel_is_refused_on_a_device():
    on_host, on_device = array(HOST), array(DEVICE)
    with watched_operators():
        mx.nd.khatri_rao(on_host, on_host)
        with pytest.raises(AssertionError, match="khatri_rao has no kernel for GPUs"):
            mx.nd.khatri_rao(on_device, on_device)


def test_an_operator_that_waits_inside_is_refused_on_a_device():
    places = mx.nd.zeros((2, 1), ctx=DEVICE)
    on_device = array(DEVICE)
    with watched_operators(), pytest.raises(AssertionError, match="gather_nd waits inside"):
        mx.nd.gather_nd(on_device, places)


def test_graphs_and_backward_passes_are_seen():
    graph = mx.nd.CachedOp(mx.sym.var("x") * mx.sym.var("y"))
    one, other = array(DEVICE), array(DEVICE)
    one.attach_grad()
    with mx.autograd.record():
        product = graph(one, other)
    with watched_operators() as calls:
        graph(one, other)
        product.backward(other)
    assert [call.operator for call in calls] == ["CachedOp", "backward"]
    with mx.autograd.record():
        product = graph(one, other)
    gradient = array(HOST)
    with watched_operators(), pytest.raises(AssertionError, match="backward has arrays on"):
        product.backward(gradient)


def test_updaters_are_seen():
    weight, gradient = array(DEVICE), array(HOST)
    updater = mx.optimizer.get_updater(mx.optimizer.SGD(momentum=0.9))
    with watched_operators(), pytest.raises(AssertionError, match="sgd_mom_update has arrays on"):
        updater(0, gradient, weight)
