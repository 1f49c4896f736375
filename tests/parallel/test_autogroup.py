"""Autogroup, with a small script in place of training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from parallel import autogroup
from parallel.launch.cluster_files import read_hosts, read_servers
from parallel.launch.data_sharding import read_shares
from runtime.errors import DataError

ROOT = Path(__file__).resolve().parents[2]
# It reports as worker 0 of a training run would: the speeds that stand in SPEEDS.
REPORT = """
import json, os, pathlib, sys, time
words = sys.argv[1:]
assert words[words.index("--kv-store") + 1] == "dist_async", words
folder = pathlib.Path(words[words.index("--models-root") + 1])
speeds = {speeds}
if os.environ["GROUPING_WORKER"] == "0":
    with open(folder / "metrics.jsonl", "w") as file:
        for update in range({reports}):
            record = {{f"images_per_second/worker_{{k}}": one for k, one in enumerate(speeds)}}
            file.write(json.dumps(record) + "\\n")
sys.exit({status})
"""


def autogrouped(folder, speeds, *, reports=8, status=0, options=()):
    program = folder / "program.py"
    program.write_text(REPORT.format(speeds=speeds, reports=reports, status=status))
    start = (
        "import sys; from parallel import autogroup; from runtime.errors import run_program\n"
        "serve = (sys.executable, '-c', 'import time; time.sleep(300)')\n"
        "run_program(lambda: autogroup.main(sys.argv[1:], serve))"
    )
    return subprocess.run(
        [
            *(sys.executable, "-c", start, "-n", str(len(speeds)), "-s", "1"),
            *("--groups", str(folder / "groups"), "--data-sharding", str(folder / "shares")),
            *options,
            *("--", sys.executable, str(program)),
        ],
        cwd=folder,
        env={"PYTHONPATH": ":".join([str(ROOT), *sys.path]), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_measured_speeds_become_groups_and_shares(tmp_path):
    result = autogrouped(tmp_path, [25.0, 100.0, 25.5, 101.0])
    assert result.returncode == 0, result.stderr
    assert "group 0: worker 1 on 127.0.0.1 100 images/s, worker 3" in result.stdout
    assert (tmp_path / "groups").read_text() == (
        "127.0.0.1:1 127.0.0.1:3\n127.0.0.1:0 127.0.0.1:2\n"
    )
    assert (tmp_path / "shares").read_text() == "0.0 0.1\n0.1 0.5\n0.5 0.6\n0.6 1.0\n"
    assert (tmp_path / "servers").read_text() == "127.0.0.1 251.5\n"
    assert not list(tmp_path.glob(".autogroup-*"))


def test_servers_are_ordered_by_the_speed_of_their_machines(tmp_path):
    """Two addresses of this machine, of which the second has the faster workers."""
    (tmp_path / "hosts").write_text("127.0.0.1\n127.0.0.2\n127.0.0.2\n")
    options = ("-H", "hosts", "-s", "2", "--server-hosts", "order")
    result = autogrouped(tmp_path, [80.0, 100.0, 140.0], options=options)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "order").read_text() == "127.0.0.2 240\n127.0.0.1 80\n"
    assert "server 0: 127.0.0.2, 75% of the load\nserver 1: 127.0.0.1, 25%" in result.stdout
    assert read_servers(tmp_path / "order", 2, ("127.0.0.1", "127.0.0.2")) == (
        ("127.0.0.2", "127.0.0.1"), (240.0, 80.0),
    )  # fmt: skip


@pytest.mark.parametrize("first", ["127.0.0.1", "localhost"])
def test_shares_are_written_for_the_address_that_reads_them(tmp_path, first: str):
    """By descending address, as MXNet-G writes and reads them, also of a host that has a name."""
    (tmp_path / "hosts").write_text(f"{first}\n127.0.0.9\n127.0.0.10\n127.0.0.10\n")
    result = autogrouped(tmp_path, [100.0, 25.0, 101.0, 25.5], options=("-H", "hosts"))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "groups").read_text() == (f"{first} 127.0.0.10:0\n127.0.0.9 127.0.0.10:1\n")
    # Of 127.0.0.9, of the two slots of 127.0.0.10, and of 127.0.0.1.
    assert (tmp_path / "shares").read_text() == "0.4 0.5\n0.5 0.9\n0.9 1.0\n0.0 0.4\n"
    assert "share of worker 1 on 127.0.0.9: 0.4 to 0.5 (line 1 of" in result.stdout
    addresses = ("127.0.0.1", *read_hosts(tmp_path / "hosts", 4).addresses[1:])
    found = read_shares(tmp_path / "shares", addresses)
    assert found.of_workers == ((0, 0.4), (0.4, 0.5), (0.5, 0.9), (0.9, 1)) and not found.warnings


def test_a_run_that_fails_writes_nothing(tmp_path):
    result = autogrouped(tmp_path, [25.0, 100.0], status=7)
    assert result.returncode == 7
    assert not (tmp_path / "groups").exists() and not list(tmp_path.glob(".autogroup-*"))


def test_too_few_reports_are_an_error_with_the_remedy(tmp_path):
    result = autogrouped(tmp_path, [25.0, 100.0], reports=3)
    assert result.returncode == 2
    assert "made 3 reports of all workers, but 4 are needed; let it train on" in result.stderr


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
