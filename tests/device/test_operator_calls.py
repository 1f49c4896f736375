"""What the tests of this folder rely on: calls that would be wrong on a GPU are noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from runtime.mxnet import mx
from tests.device.host_syncs import counted_host_syncs
from tests.device.operator_calls import watched_operators
from tests.device.updates import DEVICE, HOST


def array(context: Any, dtype: str = "float32") -> Any:
    return mx.nd.array(np.ones((2, 2)), ctx=context, dtype=dtype)


def backward_from_the_host() -> None:
    weight = array(DEVICE)
    weight.attach_grad()
    with mx.autograd.record():
        product = mx.nd.CachedOp(mx.sym.var("x") * mx.sym.var("y"))(weight, array(DEVICE))
    product.backward(array(HOST))


@pytest.mark.parametrize(
    ("call", "refusal"),
    [
        (lambda: array(HOST) + array(DEVICE), r"add has arrays on cpu\(0\), c"),
        (lambda: mx.nd.exp(array(DEVICE), out=array(HOST)), "exp has arrays on"),
        (lambda: array(DEVICE).astype("float64"), "float64 array on cpu"),
        (lambda: mx.nd.khatri_rao(array(DEVICE), array(DEVICE)), "khatri_rao has no kernel"),
        (
            lambda: mx.nd.gather_nd(array(DEVICE), mx.nd.zeros((2, 1), ctx=DEVICE)),
            "gather_nd waits inside",
        ),
        (backward_from_the_host, "backward has arrays on"),
    ],
)
def test_a_call_that_a_gpu_cannot_do_is_refused(call: Callable[[], Any], refusal: str) -> None:
    with watched_operators(), pytest.raises(AssertionError, match=refusal):
        call()


def test_waits_for_a_device_are_counted() -> None:
    array_of_host, on_device = array(HOST), array(DEVICE)
    with counted_host_syncs() as syncs:
        array_of_host.wait_to_read()
        array_of_host.asnumpy()
        on_device += 2 * on_device
        on_device.copyto(array_of_host)
    assert not syncs
    with counted_host_syncs() as syncs:
        on_device.wait_to_read()
        on_device[:] = np.ones((2, 2), np.float32)
        # Of the device, although the array that is read is one of the host.
        on_device.copyto(array_of_host)
        array_of_host.asnumpy()
    assert [sync.function for sync in syncs] == [
        "MXNDArrayWaitToRead", "MXNDArraySyncCopyFromCPU", "MXNDArraySyncCopyToCPU"
    ]  # fmt: skip
