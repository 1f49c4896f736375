"""Every call that waits for a device is counted, once and with its place; no other call is."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.engine import wait_until_unused
from runtime.mxnet import mx
from tests.device.host_syncs import counted_host_syncs
from tests.device.updates import DEVICE, HOST

ONES = np.ones((2, 2), np.float32)


def ones(context):
    return mx.nd.ones((2, 2), ctx=context)


@pytest.mark.parametrize(
    ("wait", "function"),
    [
        (lambda array: array.wait_to_read(), "MXNDArrayWaitToRead"),
        (wait_until_unused, "MXNDArrayWaitToWrite"),
        (lambda array: array.asnumpy(), "MXNDArraySyncCopyToCPU"),
        (lambda array: float(array[0, 0].asscalar()), "MXNDArraySyncCopyToCPU"),
        (lambda array: bool(array.min() > 0), "MXNDArraySyncCopyToCPU"),
        (lambda array: mx.nd.array(ONES, ctx=array.context), "MXNDArraySyncCopyFromCPU"),
        (lambda array: array.__setitem__(slice(None), ONES), "MXNDArraySyncCopyFromCPU"),
    ],
)
def test_waits_for_a_device_are_counted(wait, function):
    for context, count in ((DEVICE, 1), (HOST, 0)):
        array = ones(context)
        with counted_host_syncs() as syncs:
            wait(array)
        assert [sync.function for sync in syncs] == [function] * count
        for sync in syncs:
            assert sync.site.startswith(("tests/device/test_host_syncs.py:", "runtime/engine.py:"))


def test_a_wait_for_everything_is_counted():
    with counted_host_syncs() as syncs:
        mx.nd.waitall()
    assert [sync.function for sync in syncs] == ["MXNDArrayWaitAll"]


@pytest.mark.parametrize("host", [HOST, mx.cpu_pinned(1)], ids=str)
def test_reading_what_was_copied_from_a_device_is_counted(host):
    staging, results = ones(host), ones(host)
    with counted_host_syncs() as syncs:
        staging[:] = ONES
        on_device = staging.as_in_context(DEVICE)
        staging.asnumpy()
        assert not syncs
        on_device.copyto(results)
        assert not syncs
        results.asnumpy()
        results[:1].asnumpy()
        (results + 1).asnumpy()
    assert [sync.function for sync in syncs] == ["MXNDArraySyncCopyToCPU"] * 3


def test_queueing_does_not_wait():
    array = ones(DEVICE)
    with counted_host_syncs() as syncs:
        for _ in range(3):
            array += 2 * array
    assert not syncs
