from __future__ import annotations

import json
import re
from pathlib import Path

from backbones.classifiers import Normalization
from backbones.classifiers.classifier import Classifier
from training.config.images import ImageConfig, parse
from training.plan import images
from training.plan.images import ImageSize

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/scaling.md"
SIZE = ImageSize(classes=10, images=1000, parameters=1000, trained=750, maps=200)


def config(line: str = "") -> ImageConfig:
    plain = "--dataset synthetic --model LeNet --batch-size 50 --epochs 2 --dry-run --world-size 2"
    return parse([*plain.split(), *line.split()])


def test_memory_and_collectives_by_hand() -> None:
    items = {item.key: item.num_bytes for item in images.rank_memory(config(), SIZE)}
    assert items == {
        # Parameters; gradients and momentum of those that are trained.
        "backbone": 4 * (1000 + 2 * 750),
        "activations": 4 * 50 * 200,
        "libraries": 350 * 2**20 + 2 * 4 * 1000,
    }
    assert images.rank_memory(config("--dtype bfloat16"), SIZE)[1].num_bytes == 2 * 50 * 200
    for line, copied in (("", 4 * (1000 + 750)), ("--keep 0", 0)):
        assert images.checkpoint_bytes(config(line), SIZE) == copied
    for line, sent in (("", 3000), ("--fp16-allreduce", 1500), ("--dtype float16", 1500)):
        found = images.collective_bytes(config(line), SIZE)
        assert found == {"allreduce of the gradients": sent}


def test_a_plan_is_that_of_the_network() -> None:
    chosen = config("--json --freeze conv1_*")
    found = json.loads(images.describe(chosen))
    network = Classifier.create(
        chosen.classifier, classes=10, image_shape=(3, 32, 32),
        normalization=Normalization((0.5,) * 3, (0.5,) * 3),
    )  # fmt: skip
    trained = [one for one in network.parameters.values() if one.grad_req != "null"]
    assert 0 < len(trained) < len(network.parameters.values())
    (sent,) = found["collectives"]
    assert sent["bytes"] == 4 * sum(one.data().size for one in trained)
    assert (found["version"], found["device"], found["num_classes"]) == (2, "cpu", 10)
    assert (found["ranks"], found["batch_size"]) == (2, 50)
    assert (found["updates_per_epoch"], found["updates"]) == (100, 200)
    named = {*re.findall(r"`([a-z_]+)`", DOCUMENT.read_text("utf-8"))}
    assert {*found, *found["memory"]} <= named
    text = images.describe(config())
    assert "10,000 images of 10 classes, LeNet" in text
    assert "global batch 100 (2 ranks x 50 images)" in text
    assert "100 updates per epoch, 200 in all (2.0 epochs)" in text
    everything = found["memory"]["bytes"] + found["memory"]["checkpoint_bytes"]
    assert everything > 350 * 2**20 and "with the copy for checkpoints" in text
