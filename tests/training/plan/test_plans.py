"""Plans of runs: sizes by hand, and next to what others have published."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import backbones
from backbones.graph import passes as graph_memory
from partial_fc.shard import Shard
from runtime import processors
from runtime.errors import ConfigError
from tests.backbones.passes import classifier
from tests.support.typed import replaced
from training.config import faces, images
from training.plan import faces as face_plans
from training.plan import images as image_plans
from training.plan import row
from training.plan.faces import NetworkSize, network_size

DOCUMENT = (Path(__file__).parents[3] / "docs/scaling.md").read_text("utf-8")
DOCUMENTED = {*re.findall(r"`([a-z_]+)`", DOCUMENT)}
MIB = 2**20
SMALL = (
    "--rec . --dry-run --world-size 3 --sample-ratio 0.5 --num-classes 10 --num-images 99 "
    "--network tiny --embedding-size 8 --batch-size 4 "
)
FIRST = Shard(0, 3, 10)
NETWORK = NetworkSize(parameters=1000, trained=900, maps=500.0)
ROWS = 4 * 8 * 4
ADAM = "--optimizer adam --lr 0.1 --wd 0"
R50, R100 = "--network r50 --dtype float16", "--network r100 --dtype"
V100 = 16_160


def small_config(line: str = "", **changes: Any) -> faces.FaceConfig:
    return replaced(faces.parse((SMALL + line).split()), **changes)


def planned(line: str) -> dict[str, Any]:
    return json.loads(face_plans.describe(faces.parse(f"--dry-run --json {line}".split())))


@pytest.mark.parametrize(("line", "shard", "expected"), [
    # The batch of four lifts the sample from two rows to four.
    ("", FIRST, {
        "class_centers": ROWS, "optimizer_states": ROWS, "sampled_rows": 2 * ROWS,
        "logits": 12 * 4 * 4, "features": 4 * 12 * 8 * 4, "backbone": 4 * (1000 + 2 * 900),
        "activations": 4 * 4 * 500, "libraries": 350 * MIB + 2 * 4 * 1000,
    }),
    # Adam has two moments as large as the centers and a count of four bytes for each row.
    (ADAM, FIRST, {"optimizer_states": 2 * ROWS + 4 * 4, "backbone": 4 * (1000 + 3 * 900)}),
    # Centers and momenta of three samples, and checksum, place and mark of each class.
    ("--center-store /nowhere", FIRST, {
        "class_centers": 4 * (4 + 4 + 1), "optimizer_states": 0,
        "sampled_rows": 2 * ROWS + 3 * 2 * ROWS,
    }),
    # Rows and logits of two bytes; a gradient and float32 sums for 2,048 of 9,000 rows, in
    # five blocks.
    ("--sample-ratio 1 --head-dtype bfloat16 --num-classes 9000", Shard(0, 1, 9000), {
        "sampled_rows": (9000 + 2048) * 8 * 2, "logits": 4 * (9000 * 2 + 2048 * 4),
        "features": 4 * 4 * 8 * 4 + 5 * 4 * 8 * 2,
    }),
    ("--dtype bfloat16", FIRST, {"backbone": 4 * 2800, "activations": round(0.63 * 8000)}),
    ("--accumulate 2", FIRST, {"backbone": 4 * 2800, "activations": 4 * 2 * 500}),
    # All four rows are taken: nothing is copied.
    ("--gpu", FIRST, {
        "sampled_rows": 2 * ROWS, "logits": 12 * 4 * 4, "features": 9 * 12 * 8 * 4,
        "backbone": 4 * (1000 + 2 * 900), "activations": 4 * 4 * 500,
    }),
    # Four of ten, with both moments, and one that Adam makes.
    (f"--gpu --sample-ratio 0.4 {ADAM}", Shard(0, 1, 10), {"sampled_rows": (2 + 3 + 1) * ROWS}),
    ("--gpu", Shard(0, 1, 10), {"libraries": 1529 * MIB}),
    ("--gpu", Shard(0, 2, 10), {"libraries": (1529 + 488) * MIB}),
    # Momenta and master copies in float32.
    ("--gpu --dtype float16", FIRST, {
        "backbone": 2 * 1900 + 4 * 2 * 900, "activations": 2 * 4 * 500,
    }),
    (f"--gpu --dtype float16 {ADAM}", FIRST, {"backbone": 2 * 1900 + 4 * 3 * 900}),
])  # fmt: skip
def test_memory_by_hand(line: str, shard: Shard, expected: dict[str, int]) -> None:
    items = face_plans.rank_memory(small_config(line), shard, NETWORK)
    assert expected.items() <= {item.name: item.bytes for item in items}.items()


def test_samples_and_the_copy_for_checkpoints_by_hand() -> None:
    large = faces.parse("--dataset 100w --dry-run".split())
    assert face_plans.sampled_rows(large, Shard(3, 8, 80)) == 10
    assert face_plans.sampled_rows(small_config("--batch-size 1", sample_ratio=0.01), FIRST) == 1
    of_backbone = 4 * (1000 + 900)
    for line, shard, expected in (
        ("", FIRST, 2 * ROWS + of_backbone), ("", Shard(2, 3, 10), 2 * 3 * 8 * 4),
        ("--center-store /nowhere", FIRST, of_backbone), ("--keep 0", FIRST, 0),
    ):  # fmt: skip
        assert face_plans.checkpoint_bytes(small_config(line), shard, NETWORK) == expected


def test_collectives_by_hand(tmp_path: Path) -> None:
    (tmp_path / "strong-0000.params").touch()
    plain = {
        "allgather head.features": 12 * 8 * 4, "allgather head.labels": 12 * 8,
        "allreduce head.maximum": 12 * 4, "allreduce head.denominator": 2 * 12 * 4,
        "allreduce head.gradient": 12 * 8 * 4, "allreduce of the backbone": 4 * 900,
    }  # fmt: skip
    for line, different in (
        ("", {}),
        ("--gpu --dtype float16", {"allreduce of the backbone": 2 * 900}),
        (f"--teacher {tmp_path}/strong,0", {"allreduce teacher.loss": 4}),
    ):
        assert face_plans.collective_bytes(small_config(line), 3, NETWORK) == {**plain, **different}


def test_sizes_of_a_network() -> None:
    parameters, shape = backbones.parameter_count("tiny", 8), (3, 112, 112)
    outputs = graph_memory.output_elements(backbones.build("tiny", embedding_size=8), shape)
    lines = ("", "--freeze conv0_weight", "--gpu", "--network r50 --recompute")
    plain, fixed, gpu, recomputed = (network_size(small_config(line)) for line in lines)
    assert plain == (parameters, parameters, 1.35 * outputs) and gpu.maps == outputs
    assert fixed.parameters - fixed.trained == 32 * 3 * 5 * 5
    deep = backbones.build("r50", embedding_size=8)
    largest, between = graph_memory.recomputed_elements(deep, shape[1:])
    assert recomputed.maps == between + 3.1 * largest < graph_memory.output_elements(deep, shape)
    small = "--network r18 --gpu"
    assert network_size(small_config(f"{small} --recompute")) == network_size(small_config(small))
    with pytest.raises(ConfigError, match="^--freeze 'convolution_' fits no parameter"):
        network_size(small_config("--freeze convolution_"))


def test_the_smallest_runs() -> None:
    plain = "--rec . --network tiny --num-classes 10 --world-size"
    assert planned(f"{plain} 10")["updates"] is None
    with pytest.raises(ConfigError, match="--world-size 11 .* use at most 10 ranks"):
        planned(f"{plain} 11")
    assert planned(f"{plain} 2 --num-images 127")["updates"] == 0


def test_mxnet_is_needed(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "backbones.graph.passes", None)
    monkeypatch.delattr("backbones.graph.passes")
    with pytest.raises(ConfigError, match="^--dry-run counts .* cannot be loaded here: .*nothing$"):
        face_plans.describe(small_config())


@pytest.mark.parametrize("gpu", ["", "--gpu"])
def test_the_most_classes_fit_exactly(gpu: str) -> None:
    line = f"--rec . --network tiny --batch-size 8 --memory 3 {gpu} --num-classes"
    most = planned(f"{line} 10")["most_classes"]
    sizes = [planned(f"{line} {classes}")["memory"] for classes in (most, most + 1)]
    taken = [one["bytes"] + (0 if gpu else one["checkpoint_bytes"]) for one in sizes]
    assert taken[0] <= 3 * 2**30 < taken[1]
    assert planned(f"{line} 10 --memory 0.01")["most_classes"] == 0


def test_the_limit_is_a_share_of_this_machine(monkeypatch) -> None:
    monkeypatch.setattr(processors, "available", lambda: 2)
    one, two, three = (face_plans.memory_limit(small_config(), ranks) for ranks in (1, 2, 3))
    assert two == three == one // 2 > 2**28
    assert face_plans.memory_limit(small_config("--memory 1.5"), 3) == 3 * 2**29
    assert face_plans.memory_limit(small_config("--gpu"), 3) is None


def test_a_plan_for_programs_has_the_documented_names_and_the_text_its_rows(tmp_path: Path) -> None:
    (tmp_path / "strong-0000.params").touch()
    line = f"--sync-bn --teacher {tmp_path}/strong,0 --memory 2"
    plan, text = planned(SMALL + line), face_plans.describe(small_config(line))
    expected = {
        "version": 2, "device": "cpu", "ranks": 3, "batch_size": 4, "num_classes": 10,
        "classes_per_rank": 4, "sampled_per_rank": 4, "updates_per_epoch": 8, "updates": 160,
        "memory_limit": 2 * 2**30,
    }  # fmt: skip
    assert expected.items() <= plan.items()
    others = {"memory", "collectives", "most_classes", "not_counted"}
    assert plan.keys() == expected.keys() | others
    assert [what.split("--")[1] for what in plan["not_counted"]] == ["sync-bn", "teacher"]
    items = {item["name"]: item["bytes"] for item in plan["memory"]["items"]}
    assert plan["memory"]["bytes"] == sum(items.values())
    assert {*plan, *plan["memory"], *items} <= DOCUMENTED
    for name in ("ranks", "updates_per_epoch", "most_classes"):
        assert f"{name}: {plan[name]:,}\n" in text
    for one in (*plan["memory"]["items"], *plan["collectives"]):
        assert row(one["name"], one["bytes"]) in text
    assert row("together", plan["memory"]["bytes"]) in text
    assert row("checkpoint_bytes, on the host", plan["memory"]["checkpoint_bytes"]) in text
    assert row("", 2**51).split() == ["2048.0", "TiB", f"{2**51:,}"]
    text = face_plans.describe(faces.parse("--dry-run --dataset 100w --network tiny --gpu".split()))
    assert "updates" not in text and "most_classes" not in text and "device: gpu\n" in text
    assert "not_counted: nothing\n" in text


@pytest.mark.parametrize(("line", "identities", "ranks", "batch_size", "published"), [
    # README of InsightFace's recognition/partial_fc, MXNet on RTX 2080 Ti, in MiB.
    (R50, 1_000_000, 8, 128, 8_100),
    # README of Oneflow-Inc/DLPerf, MxNet/InsightFace/PartailFC: the largest on V100 of 16 GB.
    (f"{R100} float32", 85_742, 1, 112, V100),
    (f"{R100} float16", 12_000_000, 8, 64, V100),
])  # fmt: skip
def test_what_was_published(line, identities, ranks, batch_size, published) -> None:
    line += f" --num-classes {identities} --batch-size {batch_size} --world-size {ranks}"
    found = planned(f"--dataset 100w --gpu --sample-ratio 0.1 {line}")["memory"]["bytes"] / MIB
    assert found == pytest.approx(published, rel=0.15)


def config(line: str = "") -> images.ImageConfig:
    plain = "--dataset synthetic --model LeNet --batch-size 50 --epochs 2 --dry-run --world-size 2"
    return images.parse([*plain.split(), *line.split()])


def plan_of_images(line: str = "") -> Any:
    return json.loads(image_plans.describe(config(f"--json {line}")))


@pytest.mark.parametrize("line", ["", "--freeze conv1_*"])
def test_memory_and_collectives_of_a_classifier(line: str) -> None:
    found = plan_of_images(line)
    network = classifier("LeNet", freeze=config(line).classifier.freeze)
    every = [*network.parameters.values()]
    parameters = sum(one.data().size for one in every)
    trained = sum(one.data().size for one in every if one.grad_req != "null")
    maps = graph_memory.output_elements(network.graph, (3, 32, 32))
    assert {item["name"]: item["bytes"] for item in found["memory"]["items"]} == {
        # Parameters; gradients and momentum of those that are trained.
        "backbone": 4 * (parameters + 2 * trained),
        "activations": 4 * 50 * maps,
        "libraries": 350 * 2**20 + 2 * 4 * parameters,
    }
    assert found["memory"]["checkpoint_bytes"] == 4 * (parameters + trained)
    (sent,) = found["collectives"]
    assert sent == {"name": "allreduce of the gradients", "bytes": 4 * trained}
    if not line:
        halves = plan_of_images("--dtype bfloat16 --keep 0 --fp16-allreduce")
        assert halves["memory"]["items"][1]["bytes"] == 2 * 50 * maps
        assert halves["memory"]["checkpoint_bytes"] == 0
        assert halves["collectives"][0]["bytes"] == 2 * trained
        float16 = plan_of_images("--dtype float16")
        assert float16["collectives"][0]["bytes"] == 2 * trained
