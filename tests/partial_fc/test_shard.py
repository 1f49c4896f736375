"""Shards of the classes: which rows, how they are sampled, their numbers, and centers of a file."""

import math
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parallel.world import LoneWorld
from partial_fc import optimizers
from partial_fc.bfloat16 import narrowed, widened
from partial_fc.head import PartialFC
from partial_fc.initial import initial_centers, read_centers
from partial_fc.options import HeadOptions
from partial_fc.shard import DEVIATION, Sampler, Shard, centers_of, draw_distinct
from runtime.errors import DataError
from runtime.kernels import parallel_kernel, prange
from runtime.mxnet import mx
from runtime.ndarray import BFLOAT16, memory


@given(num_classes=st.integers(1, 400_000), world_size=st.integers(1, 64))
@settings(max_examples=25, deadline=None)
def test_shards_partition_the_classes(num_classes: int, world_size: int) -> None:
    shards = [Shard(rank, world_size, num_classes) for rank in range(world_size)]
    assert shards[0].start == 0 and shards[-1].stop == num_classes
    assert all(one.stop == other.start for one, other in zip(shards, shards[1:]))
    sizes = [shard.size for shard in shards]
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(("size", "checksum"), [
    (1, 2792838907), (7, 2408334166), (64, 3509109797),
])
def test_initial_centers_are_those_of_earlier_runs(size: int, checksum: int) -> None:
    """A store holds those alone that were sampled, so it needs the same ones for ever."""
    centers = initial_centers(Shard(0, 1, 5000), size, seed=2)
    assert zlib.crc32(centers.tobytes()) == checksum
    for ranks in (2, 3):
        parts = [initial_centers(Shard(rank, ranks, 5000), size, 2) for rank in range(ranks)]
        assert np.array_equal(np.concatenate(parts), centers)


def test_initial_centers_are_normal() -> None:
    centers = initial_centers(Shard(0, 1, 5000), 64, seed=2)
    assert centers.dtype == np.float32 and abs(centers.mean()) < 1e-4
    assert centers.std() == pytest.approx(0.01, rel=0.01)
    assert (centers**4).mean() == pytest.approx(3 * 0.01**4, rel=0.02)
    assert np.unique(centers[:, 0]).size == 5000, "two classes share a center"
    assert np.abs(np.corrcoef(centers.T) - np.eye(64)).max() < 0.08
    assert (centers[:10] != initial_centers(Shard(0, 1, 10), 64, seed=1)).any()


@given(
    population=st.integers(1, 2000) | st.sampled_from([2**31, 2**31 + 1, 2**40]),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
@example(2**31, 0.5, 0)
@example(2**31 + 1, 0.5, 0)
@settings(max_examples=25, deadline=None)
def test_draws_are_distinct_sorted_and_in_range(population: int, share: float, seed: int) -> None:
    count = round(share * min(population, 2000))
    drawn = draw_distinct(np.random.default_rng(seed), population, count)
    assert drawn.size == count and drawn.dtype == np.int64 and np.all(np.diff(drawn) > 0)
    assert not count or 0 <= drawn[0] <= drawn[-1] < population
    assert count < 1000 or drawn[-1] > 0.98 * population


def test_draws_are_those_of_earlier_runs() -> None:
    drawn = draw_distinct(np.random.default_rng(7), 1000, 12)
    assert drawn.tolist() == [5, 55, 119, 131, 303, 341, 467, 816, 821, 897, 912, 990]
    assert int(draw_distinct(np.random.default_rng(7), 10**6, 9 * 10**5).sum()) == 449932748712


@pytest.mark.parametrize("ratio", [0.3, 1.0])
def test_rows_hold_every_positive_and_targets_point_at_them(ratio: float) -> None:
    shard = Shard(1, 3, 301)
    labels = np.random.default_rng(2).integers(301, size=64)
    sample = Sampler(shard, ratio, seed=0).sample(labels, update=5)
    assert np.all(np.diff(sample.rows) > 0) and sample.rows.size == round(ratio * shard.size)
    assert sample.rows[0] >= 0 and sample.rows[-1] < shard.size
    local = (shard.start <= labels) & (labels < shard.stop)
    assert np.array_equal(sample.local, local) and not sample.targets[~local].any()
    assert np.array_equal(sample.rows[sample.targets[local]], labels[local] - shard.start)
    sample = Sampler(Shard(0, 1, 100), 0.1, seed=0).sample(np.arange(30, 60), update=0)
    assert np.array_equal(sample.rows, np.arange(30, 60))


def test_negatives_are_uniform_beside_the_positives() -> None:
    sampler, counts = Sampler(Shard(0, 1, 60), 0.2, seed=7), np.zeros(60)
    labels = np.array([3, 4, 5, 30, 59])
    for update in range(3000):
        counts[sampler.sample(labels, update).rows] += 1
    assert np.all(counts[labels] == 3000)
    negatives = np.delete(counts, labels)
    # Chi-square per degree of freedom: 1 on average when the counts are uniform.
    assert (negatives.var() / negatives.mean()) / (1 - 7 / 55) < 1.6


def test_a_sample_depends_on_seed_update_and_rank_alone() -> None:
    def rows(seed: int = 0, update: int = 0, rank: int = 0) -> list[int]:
        sampler = Sampler(Shard(rank, 2, 2000), 0.1, seed)
        return sampler.sample(np.array([1, 2, 3]), update).rows.tolist()

    assert rows() == rows()
    assert rows() not in (rows(seed=1), rows(update=1), rows(rank=1))


def test_large_shards_take_little_memory_and_keep_ids_exact() -> None:
    """float32 would round these neighbors to the same class."""
    sampler = Sampler(Shard(0, 1, 50_000_000), 1e-4, seed=0)
    labels = np.append(np.arange(0, 50_000_000, 500_000), [2**24 + 1, 2**24 + 2])
    tracemalloc.start()
    sample = sampler.sample(labels, update=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sample.rows.size == 5000 and np.array_equal(sample.rows[sample.targets], labels)
    assert peak < 1_000_000, "an array of the shard's length was made"


CLASSES, SIZE = 10, 4
CENTERS = np.random.default_rng(0).standard_normal((CLASSES, SIZE)).astype(np.float32)


def save(folder: Path, ranks: int) -> Path:
    """As ``MemoryBank.save`` of the original does it."""
    rows = (CLASSES + ranks - 1) // ranks
    padded = np.concatenate([CENTERS, np.full((rows * ranks - CLASSES, SIZE), 7, np.float32)])
    folder.mkdir(exist_ok=True)
    for rank in range(ranks):
        own = mx.nd.array(padded[rank * rows : (rank + 1) * rows])
        mx.nd.save(fname=str(folder / f"{rank}_centers.param"), data=own)
        mx.nd.save(fname=str(folder / f"{rank}_centers_mom.param"), data=mx.nd.zeros_like(own))
    return folder


@pytest.mark.parametrize("theirs", [1, 3, 4, 10])
def test_any_number_of_ranks_reads_those_of_any_other(theirs: int, tmp_path: Path) -> None:
    folder = save(tmp_path / "run", theirs)
    for ours in (1, 2, 3, 7):
        shards = [Shard(rank, ours, CLASSES) for rank in range(ours)]
        found = [read_centers(folder, shard, SIZE) for shard in shards]
        np.testing.assert_array_equal(np.concatenate(found), CENTERS)
    options, rule = HeadOptions(pretrained_centers=str(folder)), optimizers.build("sgd", 0.9, 5e-4)
    shape, world = (CLASSES, SIZE), LoneWorld()
    head = PartialFC.create(options, shape, world, mx.cpu(), optimizer=rule, seed=1)
    head.begin(tmp_path)
    np.testing.assert_array_equal(head.rows.export()["centers"], CENTERS)


def refused(folder: Path, match: str, classes: int = CLASSES, size: int = SIZE) -> None:
    with pytest.raises(DataError, match=match):
        read_centers(folder, Shard(0, 1, classes), size)


def test_what_does_not_fit_is_refused(tmp_path) -> None:
    folder = save(tmp_path / "run", 3)
    refused(tmp_path, "has no 0_centers.param")
    refused(folder, r"shape \(4, 4\), but 13 classes in 3 files .* make \(5, 4\)", classes=13)
    refused(folder, r"shape \(4, 4\), but .*--embedding-size 8 make \(4, 8\)", size=8)
    mx.nd.save(str(folder / "1_centers.param"), mx.nd.zeros((3, SIZE)))
    refused(folder, "1_centers.param has centers of shape")
    (folder / "2_centers.param").unlink()
    refused(folder, "10 classes in 2 files")
    mx.nd.save(str(folder / "1_centers.param"), mx.nd.full((4, SIZE), np.nan))
    mx.nd.save(str(folder / "2_centers.param"), mx.nd.zeros((4, SIZE)))
    refused(folder, "not finite")
    mx.nd.save(str(folder / "0_centers.param"), {"centers": mx.nd.array(CENTERS)})
    refused(folder, "is no file of centers")


@parallel_kernel
def _convert(values, narrow, wide):
    for i in prange(values.size):
        narrow[i] = narrowed(values[i], narrow)
        wide[i] = widened(narrow[i])


def test_rounding_and_widening_are_those_of_mxnet():
    generator = np.random.default_rng(0)
    spread = generator.normal(size=1000) * 10.0 ** generator.integers(-30, 30, size=1000)
    # 1 + 2^-8 lies between two numbers of 8 bits and goes to the even one, 1; 1 + 3 * 2^-8 goes up.
    ties = [1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0.0, -0.0, np.inf, -np.inf]
    values = np.concatenate([spread, ties]).astype(np.float32)
    array = mx.nd.amp_cast(mx.nd.array(values), dtype=BFLOAT16)
    theirs = memory(array)
    narrow, wide = np.empty(values.size, np.uint16), np.empty_like(values)
    _convert(values, narrow, wide)
    # Without AVX-512, oneDNN's conversion loses the sign of zero.
    is_zero = values == 0
    assert np.array_equal(narrow[~is_zero], theirs[~is_zero])
    assert not (theirs[is_zero] & 0x7FFF).any()
    assert np.array_equal(narrowed(values, theirs), narrow)
    assert np.array_equal(wide, widened(narrow))
    assert wide[-7:].tolist() == [1.0, 1 + 2**-6, -1.0, 0.0, 0.0, np.inf, -np.inf]
    assert widened(values) is narrowed(values, values) is values
    narrow = np.empty_like(values)
    _convert(values, narrow, wide)
    assert np.array_equal(narrow, values) and np.array_equal(wide, values)


def test_a_direction_of_no_length_keeps_the_drawn_center() -> None:
    directions, drawn = np.array([[[3, 4], [0, 0]], [[9, 9], [5, 7]]], np.float32)
    centers = centers_of(directions, drawn)
    assert centers[0] == pytest.approx(DEVIATION * math.sqrt(2) * np.array([0.6, 0.8]))
    assert centers[1].tolist() == [5, 7]
