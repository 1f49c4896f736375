from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import backbones
from partial_fc.shard import Shard
from runtime import options, processors
from runtime.errors import ConfigError
from training.config.faces import FaceConfig, parse
from training.dry_run import describe
from training.plan import calibration, keys
from training.plan.calibration import Calibration, HeadRates, InputRates, NetworkCost
from training.plan.memory import checkpoint_bytes, head_memory, sampled_rows
from training.plan.text import row
from training.plan.traffic import collective_bytes

DOCUMENT = Path(__file__).resolve().parents[2] / "docs/scaling.md"
_NAME = re.compile(r"`([a-z_]+)`")


@pytest.fixture(autouse=True)
def nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured on the machine of the tests is not to be in a plan."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def small_config() -> FaceConfig:
    line = "--num-classes 10 --num-images 99 --network tiny --embedding-size 8 --batch-size 4"
    return parse(f"--rec . --dry-run --world-size 3 --sample-ratio 0.5 {line}".split())


# The first of three shards of ten classes has four.
FIRST = Shard(0, 3, 10)


def described(line: str) -> str:
    return describe(parse(f"--dry-run {line}".split()))


def test_shards_batches_and_updates() -> None:
    text = describe(small_config())
    for line in (
        "10 classes in 3 shards",
        "rank 0: classes 0 to 3 (4)",
        "rank 2: classes 7 to 9 (3)",
        "the first 1 ranks hold one class more",
        "global batch 12 (3 ranks x 4 images)",
        "8 updates per epoch, 160 in all (20.0 epochs)",
    ):
        assert line in text
    # One rank is the default, and the number of images may be unknown.
    text = described("--dataset webface")
    assert "10,575 classes in 1 shards" in text and text.count("  rank ") == 1
    assert "add --num-images" in described("--dataset 100w")


def test_head_memory_by_hand() -> None:
    # Four classes of eight numbers; the batch of four lifts the sample from two rows to four.
    config = small_config()
    memory = head_memory(config, FIRST)
    assert (memory.centers, memory.states) == (4 * 8 * 4, 4 * 8 * 4)
    assert memory.rows == 2 * 4 * 8 * 4
    assert memory.logits == 12 * 4 * 4
    assert memory.features == 4 * 12 * 8 * 4
    assert memory.total == 128 + 128 + 256 + 192 + 1536
    assert f"{memory.total:,}" in describe(config)
    # Adam has two moments as large as the centers and a count of four bytes for each of four rows.
    adam = options.replace(config, optimizer="adam")
    assert head_memory(adam, FIRST).states == 2 * 4 * 8 * 4 + 4 * 4
    assert f"{4 * backbones.parameter_count('tiny', 8) * 4:,}" in describe(adam)
    # A store holds centers and momenta of three samples, and of each class its checksum, its place
    # and a mark.
    stored = head_memory(options.replace(config, center_store="/nowhere"), FIRST)
    assert (stored.centers, stored.states) == (4 * (4 + 4 + 1), 0)
    assert stored.rows == memory.rows + 3 * 2 * sampled_rows(config, FIRST) * 8 * 4


def test_a_sample_is_the_ratio_of_a_shard_and_has_a_row() -> None:
    config = parse("--dataset 100w --dry-run --sample-ratio 0.1".split())
    assert sampled_rows(config, Shard(3, 8, 1_000_000)) == 12_500
    config = options.replace(small_config(), batch_size=1, sample_ratio=0.01)
    assert sampled_rows(config, FIRST) == 1


def test_collectives_by_hand(tmp_path: Path) -> None:
    config = small_config()
    sizes = collective_bytes(config, 3)
    assert sizes["allgather head.features"] == 12 * 8 * 4
    assert sizes["allgather head.labels"] == 12 * 8
    assert sizes["allreduce head.gradient"] == 12 * 8 * 4
    assert sizes["allreduce head.maximum"] + sizes["allreduce head.denominator"] == 3 * 12 * 4
    parameters = backbones.parameter_count("tiny", 8)
    assert parameters > 8 * 128
    assert sizes["allreduce of the backbone"] == parameters * 4
    (tmp_path / "strong-0000.params").touch()
    for change, name, size in (
        ({"dtype": "float16"}, "allreduce of the backbone", parameters * 2),
        ({"loss": "adaface", "margins": None}, "allgather head.norms", 12 * 4),
        ({"loss": "curricularface", "margins": None}, "allreduce head.targets", 12 * 4),
        ({"teacher": f"{tmp_path}/strong,0"}, "allreduce teacher.loss", 4),
    ):
        assert collective_bytes(options.replace(config, **change), 3)[name] == size
        assert sizes.get(name) in (None, parameters * 4)


def test_what_is_not_counted_is_named(tmp_path: Path) -> None:
    (tmp_path / "strong-0000.params").touch()
    text = described("--dataset webface")
    assert "--sync-bn" not in text and "teacher" not in text
    line = f"--dataset webface --sync-bn --teacher {tmp_path}/strong,0"
    text = described(line)
    assert "not counted: the memory and the collectives of --sync-bn" in text
    assert "not counted: the memory of --teacher" in text


def test_more_ranks_than_classes_and_fewer_images_than_a_batch_are_refused() -> None:
    described("--rec . --num-classes 10 --world-size 10")
    with pytest.raises(ConfigError, match="use at most 10 ranks"):
        described("--rec . --num-classes 10 --world-size 11")
    line = "--rec . --num-classes 10 --world-size 2 --num-images"
    described(f"{line} 128")
    with pytest.raises(ConfigError, match="do not fill one global batch of 128"):
        described(f"{line} 127")


def test_memory_of_a_rank_by_hand() -> None:
    config = small_config()
    text = describe(config)
    parameters = 4 * backbones.parameter_count("tiny", 8)
    activations = backbones.activation_bytes("tiny", 4)
    libraries = 350 * 2**20 + 2 * parameters
    total = head_memory(config, FIRST).total + 3 * parameters + activations + libraries
    for size in (3 * parameters, activations, libraries, total):
        assert f"{size:,}" in text


def test_narrow_maps_recomputing_and_parts_of_a_batch_take_less() -> None:
    """Narrow maps about half, since statistics and gradients of kernels are not narrow."""
    wide, narrow = (backbones.activation_bytes("r50", 16, dtype=d) for d in ("float32", "bfloat16"))
    assert 0.5 * wide < narrow < 0.7 * wide
    recomputed = backbones.activation_bytes("r50", 16, recompute=True)
    assert recomputed < 0.75 * wide
    line = "--rec . --network r50 --num-classes 10 --batch-size"
    for words, size in (
        ("16 --dtype bfloat16", narrow), ("16 --recompute", recomputed), ("64 --accumulate 4", wide)
    ):  # fmt: skip
        assert f"{size:,}" in described(f"{line} {words}")
    config = parse(f"--dry-run {line} 64 --accumulate 4".split())
    assert f"{head_memory(config, Shard(0, 1, 10)).features:,}" in describe(config)


@pytest.mark.parametrize(
    "size, readable",
    [(0, "0.0 B"), (1023, "1023.0 B"), (1024, "1.0 KiB"), (3 * 2**29, "1.5 GiB"),
     (5 * 2**40, "5.0 TiB"), (2**51, "2048.0 TiB")],
)  # fmt: skip
def test_sizes_can_be_read(size: int, readable: str) -> None:
    assert f"  {readable:>12}  {size:>18,}" in row("", size)


def test_the_copy_for_a_checkpoint_by_hand() -> None:
    config = small_config()
    weights_and_momenta = 2 * 4 * backbones.parameter_count("tiny", 8)
    assert checkpoint_bytes(config, FIRST) == 2 * 4 * 8 * 4 + weights_and_momenta
    assert checkpoint_bytes(config, Shard(2, 3, 10)) == 2 * 3 * 8 * 4
    assert checkpoint_bytes(options.replace(config, keep=0), FIRST) == 0
    assert "with the copy for checkpoints" in describe(config)


def test_a_plan_for_programs_has_the_names_that_are_documented() -> None:
    plan = json.loads(describe(options.replace(small_config(), json=True, memory=2.0)))
    assert plan.keys() == {
        *("version", "device", "ranks", "batch_size", "num_classes", "updates_per_epoch"),
        *("updates", "memory", "collectives", "time", "memory_limit", "most_classes", "table"),
        "not_counted",
    }
    assert (plan["version"], plan["device"], plan["ranks"]) == (1, "cpu", 3)
    assert (plan["updates_per_epoch"], plan["updates"]) == (8, 160)
    items = {item["name"]: item["bytes"] for item in plan["memory"]["items"]}
    assert list(items) == [
        *("class_centers", "optimizer_states", "sampled_rows", "logits", "features", "backbone"),
        *("activations", "libraries"),
    ]
    assert items["class_centers"] == 4 * 8 * 4 and plan["memory"]["bytes"] == sum(items.values())
    assert plan["memory"]["checkpoint_bytes"] == checkpoint_bytes(small_config(), FIRST)
    assert plan["time"] is None and plan["memory_limit"] == 2 * 2**30
    named = {name.removesuffix("`") for name in _NAME.findall(DOCUMENT.read_text("utf-8"))}
    row = plan["table"][0]
    assert {*plan, *plan["memory"], *items, *row} <= named


def test_names_of_a_gpu_are_words() -> None:
    config = options.replace(small_config(), json=True, gpu=True)
    plan = json.loads(describe(config))
    names = [item["name"] for item in plan["memory"]["items"]]
    assert plan["device"] == "gpu" and len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z_]+", name) for name in names), names
    assert plan["table"] == [] and plan["most_classes"] is None


def test_what_fits_on_a_gpu_fits_exactly() -> None:
    line = "--dataset 100w --network tiny --embedding-size 128 --batch-size 8 --dry-run --gpu"
    config = options.replace(parse(line.split()), json=True, memory=3.0)
    most = json.loads(describe(config))["most_classes"]
    sizes = [
        json.loads(describe(options.replace(config, num_classes=classes)))["memory"]["bytes"]
        for classes in (most, most + 1)
    ]
    assert sizes[0] <= 3 * 2**30 < sizes[1]


def test_a_plan_uses_what_was_measured() -> None:
    config = options.replace(small_config(), world_size=1)
    cell = keys.Cell.of(1)
    network = NetworkCost(keys.network_key(config, cell), 7e8, 1e6, 0.5, 0.25)
    assert "add --calibrate" in describe(config)
    calibration.write(Calibration(processors.model(), networks=(network,)))
    text = describe(config)
    assert f"{4_000_000:>18,}  measured" in text
    # Without the head's speed there is no time.
    assert "add --calibrate" in text
    heads = (HeadRates(keys.head_key(config, cell), 1e9, 1e9, 1e9, 1e9, 1e9, 0.0),)
    inputs = (InputRates(keys.input_key(config), 1e9, 40.0),)
    calibration.write(Calibration(processors.model(), (network,), heads, inputs))
    text = describe(config)
    # 0.5 s and four times 0.25 s.
    assert "  backbone                               1,500.0 ms  measured" in text
