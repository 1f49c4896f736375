"""The time of an update, by hand."""

from __future__ import annotations

import pytest

from partial_fc.shard import Shard
from training.config.faces import FaceConfig, parse
from training.plan.calibration import (
    CollectiveRates,
    HeadRates,
    InputRates,
    NetworkCost,
    StoreRates,
)
from training.plan.items import seconds
from training.plan.keys import Cell
from training.plan.roofline import Measured, backbone_seconds, update_time

NETWORK = NetworkCost("", 1.0, 1.0, base_seconds=0.5, seconds_per_image=0.25)
HEAD = HeadRates("", operations=6e6, gathered=1e5, updated=5e4, logits=1e4, drawn=1e3,
                 base_seconds=0.125)  # fmt: skip
INPUT = InputRates("", read_bytes=8_000, decoded=2.0)
ALONE = Measured(Cell(1, 2), NETWORK, HEAD, INPUT, None)
PAIR = ALONE._replace(
    cell=Cell(2, 1), collectives=CollectiveRates("", base_seconds=0.01, sent_bytes=1e6)
)


def config(line: str) -> FaceConfig:
    plain = "--rec . --num-classes 1000 --network tiny --embedding-size 100 --batch-size 10"
    return parse([*plain.split(), "--dry-run", *line.split()])


def parts_of(line: str, ranks: int, measured: Measured) -> dict[str, float]:
    found = update_time(config(line), Shard(0, ranks, 1000), measured)
    assert found is not None
    return {one.key: one.seconds for one in found}


def test_one_rank() -> None:
    line = "--sample-ratio 0.2"
    parts = parts_of(line, 1, ALONE)
    # Ten images; 200 rows of 100 numbers; two threads decode, one disk reads.
    assert parts == pytest.approx(
        {
            "backbone": 0.5 + 10 * 0.25,
            "products": 6 * 10 * 200 * 100 / 6e6,
            "rows": 200 / 1e3 + 20_000 / 1e5 + 20_000 / 5e4,
            "softmax": 2_000 / 1e4,
            "head": 0.125,
            "decoding": 10 / (2.0 * 2),
            "reading": 10.0,
        }
    )
    # All rows are not drawn, and batches from memory neither read nor decoded.
    assert parts_of("", 1, ALONE)["rows"] == pytest.approx(100_000 / 1e5 + 100_000 / 5e4)
    assert not {"decoding", "reading"} & parts_of("--debug", 1, ALONE).keys()
    assert parts_of("--threads 5", 1, ALONE)["decoding"] == 10 / (2.0 * 5)
    stored = ALONE._replace(store=StoreRates("", rows=400.0))
    found = parts_of(f"{line} --center-store centers", 1, stored)
    assert found.pop("store") == pytest.approx(200 / 400.0)
    assert found == parts


def test_a_slow_disk_counts_where_it_takes_longer_than_the_rest() -> None:
    found = update_time(config("--sample-ratio 0.2"), Shard(0, 1, 1000), ALONE)
    assert found is not None and seconds(found) == 10.0
    fast = [one._replace(seconds=1.0) if one.key == "reading" else one for one in found]
    assert seconds(fast) == pytest.approx(sum(one.seconds for one in fast) - 1.0)


def test_parts_of_a_batch_repeat_the_forward_pass() -> None:
    """A third of the images' time for three parts of four; one optimizer."""
    assert backbone_seconds(NETWORK, 10, 1) == 0.5 + 2.5
    assert backbone_seconds(NETWORK, 10, 4) == pytest.approx(0.5 + 10.0 + 10.0 / 3 * 3 / 4)


def test_ranks_share_the_classes_and_wait_for_each_other() -> None:
    alone, (one, two) = parts_of("", 1, ALONE), (parts_of("", ranks, PAIR) for ranks in (2, 4))
    # Half of the rows, twice the batch.
    assert one["products"] == two["products"] == alone["products"]
    assert one["softmax"] == two["softmax"]
    assert "communication" not in alone
    # Six collectives; the start of one takes two steps among four ranks.
    gradient = 4 * (584_416 + 0)
    assert one["communication"] > 6 * 0.01 + gradient / 1e6
    starts = two["communication"] - 2 * 6 * 0.01
    assert starts > 1.4 * (one["communication"] - 6 * 0.01)
    # What more ranks than here need is assumed.
    for ranks, basis in ((2, "measured"), (4, "assumed")):
        found = update_time(config(""), Shard(0, ranks, 1000), PAIR)
        assert {one.key: one.basis for one in found or ()}["communication"] == basis


@pytest.mark.parametrize(
    ("line", "ranks", "missing"),
    [
        ("", 1, "network"),
        ("", 1, "head"),
        ("", 1, "input"),
        ("", 2, "collectives"),
        ("--center-store centers", 1, "store"),
    ],
)
def test_what_was_not_measured_is_not_made_up(line: str, ranks: int, missing: str) -> None:
    measured = ALONE._replace(**{missing: None})
    assert update_time(config(line), Shard(0, ranks, 1000), measured) is None
