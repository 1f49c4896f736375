"""The most classes that fit, and the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime import options, processors
from training.config.faces import FaceConfig, parse
from training.plan import capacity
from training.plan.calibration import Calibration
from training.plan.roofline import Measured

NOTHING = Calibration("")


def config(line: str = "") -> FaceConfig:
    return parse(["--dataset", "100w", "--network", "tiny", "--dry-run", *line.split()])


@pytest.mark.parametrize("most", [7, 8, 123_456_789])
def test_the_largest_number_is_found(most: int) -> None:
    assert capacity.largest(lambda classes: classes <= most, 7) == most
    # Nothing fits where a class per rank does not.
    assert capacity.largest(lambda classes: classes < 7, 7) == 0


@pytest.mark.parametrize("line", ["", "--sample-ratio 0.1", "--optimizer adam --lr 1 --wd 0"])
def test_one_class_more_would_not_fit(line: str) -> None:
    chosen, limit = config(line), 5 * 2**30
    row = capacity.choice(chosen, 2, NOTHING, limit)
    assert row.num_classes is not None
    measured = Measured.of(chosen, 2, NOTHING)
    sizes = [capacity.host_bytes(chosen, 2, row.num_classes + more, measured) for more in (0, 1, 2)]
    # Rank 0 gets every second class.
    assert sizes[0] <= limit < sizes[2]


def test_the_limit_is_given_or_a_share_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "available", lambda: 4)
    whole = capacity.memory_limit(config(), 1)
    assert whole is not None
    assert capacity.memory_limit(config(), 3) == whole // 3
    # The others are on other machines.
    assert capacity.memory_limit(config(), 64) == whole // 4
    kib = int(Path("/proc/meminfo").read_text().split()[1])
    assert whole == pytest.approx(1024 * kib, rel=0.01)
    assert capacity.memory_limit(config("--memory 1.5"), 8) == 3 * 2**29
    assert capacity.memory_limit(config("--gpu"), 8) is None
    assert capacity.memory_limit(config("--gpu --memory 11"), 8) == 11 * 2**30


def test_the_table_has_the_plan_and_its_neighbors() -> None:
    chosen = options.replace(config(), sample_ratio=0.2, batch_size=8)
    rows = list(capacity.choices(chosen, 3, NOTHING, 2**33))
    assert {(row.ranks, row.batch_size, row.sample_ratio) for row in rows} == {
        (ranks, batch, ratio)
        for ranks in (3, 6)
        for batch in (8, 16)
        for ratio in (1.0, 0.2, 0.1, 0.01)
    }
    assert len(rows) == 16 and all(row.seconds is None for row in rows)
    more = [row for row in rows if row.ranks == 6 and row.sample_ratio == 0.1]
    fewer = [row for row in rows if row.ranks == 3 and row.sample_ratio == 0.1]
    assert more[0].num_bytes < fewer[0].num_bytes
    assert (more[0].num_classes or 0) > (fewer[0].num_classes or 0)
    # More ranks than classes are no choice.
    few = capacity.choices(config("--num-classes 3"), 2, NOTHING, None)
    assert {row.ranks for row in few} == {2}
