"""Autogroup, with a small script in place of training, and what it does with speeds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel import autogroup, grouping
from parallel.launch.cluster_files import read_hosts
from parallel.launch.data_sharding import read_shares
from runtime.errors import DataError

ROOT = Path(__file__).resolve().parents[2]
# It reports as worker 0 of a training run would: the speeds that stand in SPEEDS.
REPORT = """
import json, os, pathlib, sys
words = sys.argv[1:]
assert words[words.index("--kv-store") + 1] == "dist_async", words
folder = pathlib.Path(words[words.index("--models-root") + 1])
if os.environ["GROUPING_WORKER"] == "0":
    record = {{f"images_per_second/worker_{{k}}": one for k, one in enumerate({speeds})}}
    (folder / "metrics.jsonl").write_text({reports} * (json.dumps(record) + "\\n"))
sys.exit({status})
"""


@pytest.mark.parametrize(
    ("measured", "groups"),
    [
        ((100, 100, 100, 100), ((0, 1, 2, 3),)),
        ((25, 100, 24.6, 98), ((1, 3), (0, 2))),
        ((400, 396, 203, 199, 99, 101), ((0, 1), (2, 3), (4, 5))),
        ((100,), ((0,),)),
        ((100, 101, 99, 12), ((0, 1, 2), (3,))),
    ],
)
def test_similar_workers_are_a_group_the_fastest_first(measured, groups):
    assert grouping.group(measured) == groups


def test_noise_of_a_few_percent_is_no_structure():
    for noise in np.random.default_rng(0).uniform(0.98, 1.02, (3, 6)):
        assert grouping.group(noise * 100) == ((0, 1, 2, 3, 4, 5),)
        assert grouping.group(noise * (100, 30, 100, 30, 100, 30)) == ((0, 2, 4), (1, 3, 5))


def test_shares_follow_the_slowest_of_each_group():
    shares = grouping.shares(((0, 2), (1, 3)), (100, 25, 105, 30))
    assert list(shares) == [(0, 0.4), (0.4, 0.5), (0.5, 0.9), (0.9, 1)]


@pytest.mark.parametrize(
    ("hosts", "speeds", "count", "placed"),
    [
        ("abc", (50, 100, 70), 2, [("b", 100), ("c", 70)]),
        # The workers of a machine together; equal machines in their order.
        ("aabc", (50, 60, 100, 100), 3, [("a", 110), ("b", 100), ("c", 100)]),
        # More servers than machines share the speed of theirs.
        ("ab", (50, 100), 3, [("b", 50), ("a", 50), ("b", 50)]),
        ("aa", (50, 60), 1, [("a", 110)]),
    ],
)
def test_servers_are_on_the_fastest_machines_first(hosts, speeds, count, placed):
    assert grouping.servers(hosts, speeds, count) == placed


@pytest.fixture
def autogrouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run it in an empty folder, which has its files afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(speeds: list[float], *options: str, reports: int = 8, status: int = 0) -> int:
        program = REPORT.format(speeds=speeds, reports=reports, status=status)
        words = ["-n", str(len(speeds)), *options, "--", sys.executable, "-c", program]
        try:
            return autogroup.main(words, ("sleep", "300"))
        finally:
            assert not list(tmp_path.glob(".autogroup-*"))

    return run


def test_files_are_written_for_the_addresses_that_read_them(autogrouped, capfd) -> None:
    """By descending address, as MXNet-G writes and reads them, also of a host that has a name."""
    Path("machines").write_text("localhost\n127.0.0.9\n127.0.0.10\n127.0.0.10\n")
    assert autogrouped([100.0, 25.0, 101.0, 25.5], "-H", "machines", "-s", "2") == 0
    said = capfd.readouterr().out
    assert Path("groups").read_text() == "localhost 127.0.0.10:0\n127.0.0.9 127.0.0.10:1\n"
    # Of 127.0.0.9, of the two slots of 127.0.0.10, and of 127.0.0.1.
    shares = Path("data_sharding")
    assert shares.read_text() == "0.4 0.5\n0.5 0.9\n0.9 1.0\n0.0 0.4\n"
    assert "group 0: worker 0 on localhost 100 images/s, worker 2" in said
    assert "share of worker 1 on 127.0.0.9: 0.4 to 0.5 (line 1 of" in said
    addresses = ("127.0.0.1", *read_hosts(Path("machines"), 4).addresses[1:])
    found = read_shares(shares, addresses)
    assert found.of_workers == ((0, 0.4), (0.4, 0.5), (0.5, 0.9), (0.9, 1)) and not found.warnings
    # Servers by the speed of their machines.
    assert Path("servers").read_text() == "127.0.0.10 126.5\nlocalhost 100\n"
    assert "server 0: 127.0.0.10, 56% of the load\nserver 1: localhost, 44%" in said
    with pytest.raises(DataError, match="^x/y, data_sharding, servers cannot be written: No such"):
        autogrouped([100.0], "-s", "1", "--groups", "x/y")


def test_a_run_that_fails_or_is_too_short_writes_nothing(autogrouped) -> None:
    assert autogrouped([25.0, 100.0], "-s", "1", status=7) == 7
    with pytest.raises(DataError, match="made 3 reports of all workers, but 4 are needed; let it"):
        autogrouped([25.0, 100.0], "-s", "1", reports=3)
    assert not Path("groups").exists()


def test_the_speed_is_the_median_while_all_were_at_work(tmp_path):
    path = tmp_path / "metrics.jsonl"
    pairs = [(10, 0), (900, 900), (100, 20), (100, 21), (110, 22), (100, 500)]
    names = [f"images_per_second/worker_{worker}" for worker in (0, 1)]
    records: list[Any] = [dict(zip(names, pair)) for pair in pairs]
    records.insert(3, {"target": "validation", "accuracy": 0.5})
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert autogroup.read_speeds(path, 2) == [100, 21.5]
    with pytest.raises(DataError, match="made 0 reports"):
        autogroup.read_speeds(tmp_path / "nothing", 2)


def test_the_command_that_measures_is_asynchronous_and_short():
    command = ["python", "classify.py", "--kv-store", "dist_gsync", "--data-allocator=1"]
    made = autogroup.measuring_command([*command, "--rebalance", "3", "--lr", "0.1"], Path("m"))
    assert made[:6] == ["python", "classify.py", "--kv-store", "dist_gsync", "--lr", "0.1"]
    assert made[6:10] == ["--kv-store", "dist_async", "--epochs", "1"]
    assert made[-2:] == ["--models-root", "m"]
