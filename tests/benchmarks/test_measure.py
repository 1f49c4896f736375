from __future__ import annotations

import json
import os
import re
from collections.abc import Callable

import pytest

from benchmarks import measure
from runtime import processors
from runtime.command_line import Parser
from runtime.errors import ConfigError


def parse(*words):
    parser = Parser()
    measure.add_options(parser)
    return parser.parse_args(words)


def test_variants_are_measured_in_turns() -> None:
    calls = []

    def recorded(name: str, *values: float) -> Callable[[], float]:
        remaining = iter(values)

        def measure_once() -> float:
            calls.append(name)
            return next(remaining)

        return measure_once

    measured = measure.interleave(
        {"a": recorded("a", 1.0, 2.0), "b": recorded("b", 3.0, 4.0)}, rounds=2
    )
    assert calls == ["a", "b", "a", "b"]
    assert measured == {"a": [1.0, 2.0], "b": [3.0, 4.0]}


def test_a_ratio_is_that_of_the_same_rounds() -> None:
    """The machine was twice as slow from the third round on."""
    assert measure.ratio([2, 2.2, 4, 4.4, 4], [1, 1, 2, 2, 2]) == 2
    with pytest.raises(AssertionError):
        measure.ratio([1.0], [1.0, 1.0])


def test_rows_are_written_with_the_four_keys(tmp_path) -> None:
    path = tmp_path / "rows.json"
    measure.write_json(path, [measure.Row("10 classes", "ours", 1.5, "ms")])
    assert json.loads(path.read_text()) == [
        {"case": "10 classes", "name": "ours", "value": 1.5, "unit": "ms"}
    ]
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.json"]


def test_table_lines_have_as_many_cells_as_the_header() -> None:
    table = measure.markdown_table(["head", "ms"], [["ours", "1"], ["textbook", "4"]])
    assert table == "| head | ms |\n| :-- | --: |\n| ours | 1 |\n| textbook | 4 |"


def test_the_stolen_time_is_a_share_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = measure._Ticks.now()
    assert 0 <= ticks.stolen <= ticks.all
    monkeypatch.setattr(measure, "_AT_START", measure._Ticks(100, 1000))
    monkeypatch.setattr(measure._Ticks, "now", lambda: measure._Ticks(150, 1200))
    assert "while this ran: 25%" in measure.machine()


def test_machine_names_processor_flags_and_versions() -> None:
    text = measure.machine()
    with open("/proc/cpuinfo") as file:
        has_avx512 = " avx512f " in file.read()
    assert ("avx512f" in text) == has_avx512
    assert f"{processors.available()} of {os.cpu_count()} cores" in text
    assert "mxnet 1.9.1" in text


def test_machine_names_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.search(r"^- commit: [0-9a-f]{7,}(-dirty)?$", measure.machine(), re.MULTILINE)
    monkeypatch.setenv("PATH", "")
    assert measure.commit() == "unknown"


def test_options_of_every_benchmark(tmp_path) -> None:
    options = parse("--threads", "1", "--rounds", "3", "--json", str(tmp_path / "rows.json"))
    assert (options.threads, options.rounds) == ((1,), 3)
    assert options.json == tmp_path / "rows.json"
    assert parse().rounds == 7
    assert parse().threads in ((1,), (1, 2))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--rounds", "0"), "--rounds: '0' is not a positive integer"),
        (("--threads", "1,x"), "--threads: 'x' is not a positive integer"),
        (("--threads", "100000"), "more than the .* processors"),
        (("--json", "missing/rows.json"), "--json: missing/rows.json .* make it first"),
    ],
)
def test_wrong_options_are_explained(words, complaint) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse(*words)
