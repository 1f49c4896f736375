"""The comparison of the four schemes says what was measured."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks import grouping
from benchmarks.grouping_runs import SCHEMES, GroupingCase, GroupingRun, points, run
from runtime.errors import ConfigError

MEASURED = {
    "dist_sync": [GroupingRun((10.0, 20.0, 30.0), (0.9, 0.97, 0.99), 100, 1.0)] * 3,
    "dist_async": [GroupingRun((10.0, 20.0, 30.0), (0.9, 0.91, 0.92), 400, 3.5)] * 3,
    "dist_ssync": [GroupingRun((1.0, 25.0), (0.5, 0.975), 400, 2.5)] * 3,
    "dist_gsync": [
        GroupingRun((5.0, 8.0, 15.0), (0.9, 0.98, 0.985), 200, 1.5),
        GroupingRun((5.0, 10.0, 15.0), (0.9, 0.98, 0.985), 200, 1.7),
        GroupingRun((5.0, 12.0, 15.0), (0.9, 0.96, 0.985), 200, 1.9),
    ],
}


def test_table_of_made_up_runs() -> None:
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in grouping.table(MEASURED, 0.97).splitlines()[2:]
    ]
    assert [line[0] for line in lines] == ["BSP", "ASP", "SSP", "GSP"]
    assert lines[0][1:4] == ["20.0 (20.0, 20.0, 20.0)", "1.00", "0.9900 (0.9900, 0.9900, 0.9900)"]
    assert lines[1][1:3] == ["inf (inf, inf, inf)", "0.00"]
    assert lines[3][1:3] == ["10.0 (8.0, 10.0, 15.0)", "2.00"]
    assert lines[3][4:] == [
        "200 (200, 200, 200)",
        "1.70 (1.50, 1.70, 1.90)",
        "15.0 (15.0, 15.0, 15.0)",
    ]


def test_the_table_of_some_schemes() -> None:
    without_bsp = {"dist_gsync": MEASURED["dist_gsync"]}
    assert "| GSP | 10.0 (8.0, 10.0, 15.0) |  |" in grouping.table(without_bsp, 0.97)


def test_a_scheme_that_is_none_or_comes_twice_is_refused() -> None:
    for wrong in ("BSP,GSQ", "BSP,BSP", ""):
        with pytest.raises(ConfigError, match="is no list of BSP, ASP, SSP, GSP"):
            grouping.main(["--data-dir", "mnist", "--schemes", wrong])


def test_without_a_scheme_that_reaches_the_target_there_is_no_gain() -> None:
    assert math.isnan(grouping.gain(MEASURED, "dist_sync", 0.999))


def test_rows_have_the_curves(tmp_path: Path) -> None:
    case = GroupingCase(Path("mnist"), (1.0, 4.0), 1, 1, 3, 0.97)
    rows = grouping._rows(case, {"dist_gsync": MEASURED["dist_gsync"]})
    curve = [(row.name, row.value) for row in rows if row.name.startswith("GSP, seed 2")]
    assert curve == [
        ("GSP, seed 2, after 5.00 s", 0.9), ("GSP, seed 2, after 10.00 s", 0.98),
        ("GSP, seed 2, after 15.00 s", 0.985),
    ]  # fmt: skip
    assert rows[0].name == "GSP" and rows[0].value == 10.0


def test_plot(tmp_path: Path) -> None:
    grouping.draw(MEASURED, 0.97, tmp_path / "grouping.png")
    assert (tmp_path / "grouping.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("target", "evaluated"),
    [
        (0.5, [0, 4, 8, 12, 16, 17, 18, 19, 20, 40]),
        (0.0, [0, 20, 40]),
        (0.45, [0, 4, 8, 12, 16, 17, 18, 20, 40]),
        (2.0, list(range(0, 50, 4))),
    ],
)
def test_weights_are_evaluated_closely_before_the_target_is_reached(target, evaluated) -> None:
    kept = [(float(second), Path(str(second))) for second in range(50)]
    found = points(kept, lambda path: int(path.name) / 40, target)
    assert [second for second, _ in found] == evaluated
    assert all(accuracy == second / 40 for second, accuracy in found)


def test_groups_and_shares_follow_the_slowdown() -> None:
    case = GroupingCase(Path("mnist"), (1.0, 4.0, 1.0, 4.0), 1, 3, 3, 0.97)
    assert case.groups == ((0, 2), (1, 3))
    assert case.shares == "0.0 0.4\n0.4 0.5\n0.5 0.9\n0.9 1.0\n"


@pytest.mark.parametrize("factors", ["1,x", "", "0.5,1", "1,inf", "1,nan"])
def test_a_wrong_slowdown_is_refused_at_once(factors: str) -> None:
    with pytest.raises(ConfigError, match="no list of numbers from 1"):
        grouping.main(["--data-dir", ".", "--slowdown", factors])


@pytest.mark.grouping
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_learns_on_unequal_workers(toolkit_data: Path, scheme: str) -> None:
    case = GroupingCase(toolkit_data / "mnist", (1.0, 2.0), 1, epochs=1, staleness=3, target=0.9)
    one = run(case, scheme, seed=1)
    assert one.final > 0.95 and one.seconds_to(0.9) < one.seconds[-1]
