"""The plan of a classifier, by hand; measured in test_calibrate."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from backbones.classifiers import classifier
from runtime.errors import ConfigError
from training.config.images import ImageConfig, parse
from training.plan import images
from training.plan.calibration import Calibration, CollectiveRates, NetworkCost
from training.plan.images import ImageSize
from training.plan.items import BackboneBytes
from training.plan.keys import Cell, classifier_key

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs/scaling.md"
SIZE = ImageSize(10, 1000, BackboneBytes(4000, 3000))
CELL = Cell(2, 1)


def config(line: str = "") -> ImageConfig:
    plain = "--dataset synthetic --model LeNet --batch-size 50 --epochs 2 --dry-run --world-size 2"
    return parse([*plain.split(), *line.split()])


def measured(key: str) -> Calibration:
    network = NetworkCost(key, 1e6, 2e4, 0.5, 0.01)
    # A collective starts in a quarter of a second, and a rank sends 3,000 bytes per second.
    rates = CollectiveRates(str(CELL), 0.25, 3000.0)
    return Calibration("", networks=(network,), collectives=(rates,))


def test_memory_and_time_by_hand() -> None:
    plan = images.make(config(), SIZE, CELL, measured(classifier_key(config(), CELL)))
    assert plan.memory is not None and plan.durations is not None
    items = {item.key: item.num_bytes for item in plan.memory}
    # Parameters; gradients and momentum of those that are trained.
    assert items["backbone"] == 4000 + 2 * 3000
    assert items["activations"] == 50 * 20_000
    assert items["libraries"] == 1_000_000 - 10_000
    assert plan.checkpoint == 4000 + 3000
    assert plan.collectives == {"allreduce of the gradients": 3000}
    durations = {one.key: one.seconds for one in plan.durations}
    # Two passes of half of the gradients.
    assert durations == {"backbone": 0.5 + 50 * 0.01, "communication": 0.25 + 1.0}
    text = images.as_text(plan)
    assert "global batch 100 (2 ranks x 50 images)" in text
    assert "10 updates per epoch, 20 in all (2.0 epochs)" in text
    assert re.search(r"everything together +2,250.0 ms +44.4 images/s", text)
    for name in json.loads(images.as_json(plan)):
        assert f"`{name}`" in DOCUMENT.read_text(encoding="utf-8"), name
    # More ranks than were measured are assumed.
    wide = config("--world-size 8")
    plan = images.make(wide, SIZE, CELL, measured(classifier_key(wide, CELL)))
    (sent,) = [one for one in plan.durations or () if one.key == "communication"]
    assert (sent.basis, sent.seconds) == ("assumed", pytest.approx(3 * 0.25 + 2 * 7 / 8))


def test_without_a_measurement_only_what_is_known_is_said() -> None:
    for found in (Calibration(""), measured("another")):
        plan = images.make(config("--fp16-allreduce --keep 0"), SIZE, CELL, found)
        assert plan.memory is None and plan.durations is None
        text = images.as_text(plan)
        assert text.count("not measured on this host; add --calibrate") == 2
        assert "10,000  computed" in text
        content = json.loads(images.as_json(plan))
        assert content["memory"] is None and content["time"] is None
        # Half of the bytes are sent.
        assert plan.collectives == {"allreduce of the gradients": 1500}
        assert plan.checkpoint == 0
    with pytest.raises(ConfigError, match="--dry-run plans runs on Horovod, not --kv-store dist_"):
        config("--kv-store dist_sync")


def test_each_measurement_holds_for_what_it_depends_on() -> None:
    cells = (Cell(1, 2), Cell(2, 1))
    found = {classifier_key(config(), cell) for cell in cells}
    lines = (
        *("--model VGG16", "--image-size 64", "--sync-bn", "--freeze *_bias", "--threads 1"),
        "--dtype bfloat16",
    )
    found |= {classifier_key(config(line), cells[0]) for line in lines}
    assert len(found) == 2 + len(lines)
    assert classifier_key(config("--batch-size 8 --epochs 9"), cells[0]) in found


def test_parameters_are_those_of_the_network() -> None:
    chosen = config("--json --freeze conv1_*")
    found = json.loads(images.describe(chosen))
    network = classifier.Classifier.create(
        chosen.classifier,
        classes=10,
        image_shape=(3, 32, 32),
        normalization=classifier.Normalization((0.5,) * 3, (0.5,) * 3),
    )
    every = [*network.parameters.values()]
    trained = [one for one in every if one.grad_req != "null"]
    assert 0 < len(trained) < len(every)
    (sent,) = found["collectives"]
    assert sent["bytes"] == 4 * sum(one.data().size for one in trained)
    assert (found["ranks"], found["batch_size"], found["updates"]) == (2, 50, 200)
