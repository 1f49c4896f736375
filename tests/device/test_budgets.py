"""What an update on a device may cost: waits of the host, and operations of the engine.

Numbers that rise fail a test; one that has fallen is to be lowered here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from partial_fc.options import LOSSES
from partial_fc.shard import STATES
from runtime.mxnet import mx
from tests.device.engine_operations import counted_operations
from tests.device.half_products import emulate_float16
from tests.device.host_syncs import counted_host_syncs
from tests.device.updates import DEVICE, EMBEDDING, GLOBAL_BATCH, Faces, FaceUpdates
from training.update import loss_scale

# Of one update; with cosface and SGD it is the reading of the loss and of "all finite".
HOST_SYNCS = {Faces(): 1, Faces(dtype="float16"): 1}
OTHER_HOST_SYNCS = 2
# Engine operations of a step of the head.
OPERATIONS = {
    Faces("cosface"): 66,
    Faces("softmax"): 66,
    Faces("arcface"): 74,
    Faces("adaface"): 92,
    Faces("magface"): 98,
    Faces("curricularface"): 120,
    Faces("cosface", "adam"): 97,
    Faces("cosface", "adamw"): 97,
    Faces("arcface", "adam"): 105,
    Faces("curricularface", "adam"): 151,
    Faces("cosface", filter_threshold=0.2): 120,
}


@pytest.fixture(autouse=True)
def half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_float16(monkeypatch)
    monkeypatch.setattr(loss_scale, "_INITIAL", 8.0)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("filter_threshold", [1.0, 0.2])
@pytest.mark.parametrize("optimizer", sorted(STATES))
@pytest.mark.parametrize("loss", LOSSES)
def test_host_syncs(loss: str, optimizer: str, filter_threshold: float, dtype: str) -> None:
    choices = Faces(loss, optimizer, dtype, filter_threshold)
    run = FaceUpdates(choices, DEVICE)
    run.train(2)
    with counted_host_syncs() as syncs:
        for update in range(2, 6):
            run.step(run.batch(update), update, 0.01)
    sites = "\n".join(f"{sync.function} {sync.site}" for sync in syncs)
    assert len(syncs) <= 4 * HOST_SYNCS.get(choices, OTHER_HOST_SYNCS), sites


@pytest.mark.parametrize("choices", OPERATIONS, ids=str)
def test_engine_operations_of_the_head(choices: Faces, tmp_path: Path) -> None:
    run = FaceUpdates(choices, DEVICE)
    features = mx.nd.array(
        np.random.default_rng(0).normal(size=(GLOBAL_BATCH, EMBEDDING)), ctx=DEVICE
    )
    for update in range(2):
        run.head.step(features, run.batch(update).labels, update, 0.1)
    with counted_operations(tmp_path) as found:
        run.head.step(features, run.batch(2).labels, 2, 0.1)
    assert sum(found.values()) <= OPERATIONS[choices], found
