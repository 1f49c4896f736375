from __future__ import annotations

import sys
from typing import Any

import pytest

import backbones
from partial_fc.shard import Shard
from runtime import options
from runtime.errors import ConfigError
from tests.support.allocations import measure
from training.config.faces import FaceConfig, parse
from training.dry_run import describe
from training.plan.gpu_memory import gpu_memory, pooled
from training.plan.memory import sampled_rows

MIB = 2**20
V100 = 16_160
"""MiB of a V100 with 16 GB."""


def planned(config: FaceConfig, ranks: int) -> dict[str, int]:
    assert config.data.num_classes is not None
    shard = Shard(0, ranks, config.data.num_classes)
    return gpu_memory(config, shard, sampled_rows(config, shard))


def config(line: str = "", **changes: Any) -> FaceConfig:
    line = f"--rec . --dry-run --gpu --num-classes 100000 --network r18 --batch-size 8 {line}"
    return options.replace(parse(line.split()), **changes)


def total(line: str = "", ranks: int = 2, **changes: Any) -> int:
    return sum(planned(config(line, **changes), ranks).values())


@pytest.mark.parametrize(
    "line, identities, ranks, batch_size, published",
    [
        # README of InsightFace's recognition/partial_fc, "Performance On Million Identities": r50,
        # mixed precision, RTX 2080 Ti, MXNet. Its model parallel rows use all centers; the one of
        # 10 million identities (9,684 MB at a batch of 32) is left out: that program kept at least
        # three more matrices of logits, 1.2 GB each, and its pool was emptied at the card's 11 GB.
        ("--network r50 --dtype float16 --sample-ratio 0.1", 1_000_000, 8, 128, 8_100),
        ("--network r50 --dtype float16 --sample-ratio 1", 1_000_000, 8, 128, 10_408),
        ("--network r50 --dtype float16 --sample-ratio 0.1", 10_000_000, 64, 64, 6_722),
        # README of Oneflow-Inc/DLPerf, MxNet/InsightFace/PartailFC: the largest that ran on V100
        # with 16 GB: r100, a tenth of the centers.
        ("--network r100 --dtype float32 --sample-ratio 0.1", 85_742, 1, 112, V100),
        ("--network r100 --dtype float32 --sample-ratio 0.1", 85_742, 8, 112, V100),
        ("--network r100 --dtype float32 --sample-ratio 0.1", 85_742, 32, 104, V100),
        ("--network r100 --dtype float32 --sample-ratio 0.1", 360_232, 1, 96, V100),
        ("--network r100 --dtype float32 --sample-ratio 0.1", 360_232, 8, 96, V100),
        ("--network r100 --dtype float16 --sample-ratio 0.1", 1_800_000, 1, 64, V100),
        ("--network r100 --dtype float16 --sample-ratio 0.1", 12_000_000, 8, 64, V100),
    ],
)
def test_what_was_published(
    line: str, identities: int, ranks: int, batch_size: int, published: int
) -> None:
    line += f" --dataset 100w --dry-run --gpu --num-classes {identities} --batch-size {batch_size}"
    found = sum(planned(parse(line.split()), ranks).values()) / MIB
    assert found == pytest.approx(published, rel=0.15)


def test_items_are_listed_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config("--world-size 2")
    items, text = planned(chosen, 2), describe(chosen)
    assert "memory of rank 0 on a GPU" in text
    for name, size in items.items():
        # What a run does not have is not listed.
        assert (size > 0) == (f"  {name:<30}" in text)
        assert not size or f"  {name:<30}{size / MIB:>8,.0f} MiB  {size:>18,}" in text
    assert f"{'everything together':<30}{sum(items.values()) / MIB:>8,.0f} MiB" in text
    # The other table stays what it is.
    assert "on a GPU" not in describe(options.replace(chosen, gpu=False))
    monkeypatch.setitem(sys.modules, "training.plan.gpu_memory", None)
    with pytest.raises(ConfigError, match="^--gpu counts .*loaded here: .*need nothing$"):
        describe(chosen)


def test_more_needs_more() -> None:
    base = total()
    assert total(num_classes=200_000) > base
    assert total(sample_ratio=0.1) < base
    assert total(batch_size=16) > base
    assert total(embedding_size=1024) > base
    assert total(network="r50") > base
    assert total("--lr 1e-3 --wd 0 --optimizer adam") > base
    assert total(ranks=4) < base
    assert total(network="r50", recompute=True) < total(network="r50")
    assert total(batch_size=16) < total("--accumulate 4", batch_size=64) < total(batch_size=64)
    assert total(dtype="float16") < base


def test_rounding_of_the_pool() -> None:
    sizes = (0, 1, 4096, 2 * MIB, 2 * MIB + 1)
    assert [pooled(size) for size in sizes] == [0, 4096, 4096, 2 * MIB, 4 * MIB]


def test_arrays_of_the_backbone_by_hand() -> None:
    weights = 4 * backbones.parameter_count("r18")
    items = planned(config(), 2)
    # Rounded up, array by array: those of 2.25 MiB, for example, to 4 MiB.
    assert weights < items["their gradients"] < 1.15 * weights
    assert items["their optimizer"] == items["their gradients"] < items["weights of the backbone"]
    half = planned(config(dtype="float16"), 2)
    # Momenta and master copies, float32, each in one piece.
    assert half["their optimizer"] == pytest.approx(2 * weights, rel=0.01)
    assert half["their gradients"] == pytest.approx(items["their gradients"] / 2, rel=0.15)
    # One rank sends nothing.
    alone = planned(config(), 1)
    for name in ("initial broadcast", "buffers of NCCL", "Horovod's fusion buffer"):
        assert items[name] > 0 and alone[name] == 0


# Sizes that the pool does not round.
CLASSES, BATCH, SAMPLE = 20_480, 1_024, 2_048
HEAD = "class centers", "their optimizer states", "logits", "rules for negatives", "features"


@pytest.mark.parametrize(
    "ratio, optimizer, loss, threshold",
    [
        (SAMPLE / CLASSES, "sgd", "cosface", 1.0),
        (SAMPLE / CLASSES, "adam", "cosface", 0.4),
        (1.0, "adamw", "curricularface", 1.0),
    ],
)
def test_arrays_of_the_head_are_those_of_a_step(
    ratio: float, optimizer: str, loss: str, threshold: float
) -> None:
    found = measure("head", CLASSES, BATCH, ratio, optimizer, loss, threshold)
    # Numbers for each row or sample are small.
    expected = sum(size * count for size, count in found.items() if size >= 2**16)
    line = f"--lr 0.1 --wd 0 --optimizer {optimizer} --loss {loss} --filter-threshold {threshold}"
    items = planned(config(line, num_classes=CLASSES, batch_size=BATCH, sample_ratio=ratio), 1)
    rows = f"{round(CLASSES * ratio):,} sampled rows"
    assert sum(items[name] for name in (*HEAD, rows)) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    "dtype, optimizer", [("float32", "sgd"), ("float16", "sgd"), ("float16", "adamw")]
)
def test_arrays_of_the_optimizer_are_those_of_its_updates(dtype: str, optimizer: str) -> None:
    found = measure("optimizer", "r18", dtype, optimizer)
    expected = sum(pooled(size) * count for size, count in found.items())
    items = planned(config(f"--lr 0.1 --wd 0 --optimizer {optimizer}", dtype=dtype), 1)
    sizes = items["their optimizer"] + items["arrays of its update"]
    assert sizes == pytest.approx(expected, rel=0.01)


def test_large_logits_are_worked_on_in_parts() -> None:
    line = "--num-classes 1000000 --batch-size 256 --loss "
    assert planned(config(line + "cosface"), 1)["rules for negatives"] == 0
    curricular = planned(config(line + "curricularface"), 1)
    assert curricular["logits"] > 2**29
    assert curricular["rules for negatives"] == 4 * 2**27


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("", "^--gpu goes with --dry-run; .*by itself$"),
        ("--dry-run --head-dtype bfloat16", "bfloat16 is for CPUs: .* use float32$"),
        ("--dry-run --dtype bfloat16", "^--dtype bfloat16 is for CPUs"),
    ],
)
def test_mistakes(line: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse(f"--dataset 100w --gpu {line}".split())
