import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from parallel import autogroup
from parallel.launch import launcher, ssh, sync
from parallel.launch.__main__ import main
from parallel.launch.cluster_files import read_hosts, read_shares
from parallel.launch.options import JobOptions, parse
from runtime.errors import ConfigError, DataError
from runtime.options import hint_for
from tests.support.launch import ROOT
from tests.support.typed import names_of
from training.config import images

SYNC = "-- x.py --kv-store dist_sync"
# It reports as worker 0 of a training run would: the speeds that stand in SPEEDS.
REPORT = """
import json, os, pathlib, sys
words = sys.argv[1:]
given, measuring = " ".join(words).split(" --kv-store dist_async ")
assert given == "--kv-store dist_gsync --lr 0.1" and measuring.startswith("--epochs 1 "), words
folder = pathlib.Path(words[words.index("--models-root") + 1])
if os.environ["GROUPING_WORKER"] == "0":
    record = {{f"images_per_second/worker_{{k}}": one for k, one in enumerate({speeds})}}
    (folder / "metrics.jsonl").write_text({reports} * (json.dumps(record) + "\\n"))
sys.exit({status})
"""


def parsed(line: str) -> JobOptions:
    return parse("", "", line.split())


@pytest.mark.parametrize(("line", "message"), [
    ("--", "the following arguments are required: command"),
    ("--launcher mpi python x.py", "--launcher/--cluster: invalid choice: 'mpi' (choose from"),
    ("--sync-dst-dir /tmp/x python x.py", "--sync-dst-dir is not an option here: type `--sync`"),
    ("--slurm-worker-nodes 2 x", "--slurm-worker-nodes is not an option here: leave it"),
    ("-- x.py --kv-store dist_asinc", "(did you mean 'dist_async'?)"),
    ("-- x.py", "--kv-store '' has no servers; give it one of dist_sync"),
    ("-- x.py --kv-store dist_gsync", "needs --groups FILE; python -m parallel.autogroup"),
    (f"--tolerate-workers {SYNC}", "workers wait for each other"),
    (f"--data-sharding x {SYNC}", "add --data-allocator 1"),
    (f"--server-speeds 2,1 {SYNC}", "servers of one machine have different speeds"),
    *((f"--server-speeds 2,{x} {SYNC}", "no list of positive num") for x in ("0", "inf", "x")),
    (f"--server-hosts f --server-speeds 2,1 {SYNC}", "has the speeds of the servers, too"),
    (f"--bucket-elements 1023 {SYNC}", "1023 is not from 1024 (MXNet's"),
    (f"-i ethx {SYNC}", "-i ethx: no such network interface"),
    (f"-H /nowhere {SYNC}", "/nowhere cannot be read as a list of"),
    (f"-H hosts {SYNC}", "host 192.0.2.1 is not this machine; give --launcher"),
    (f"--sync {SYNC}", "--sync copies to other hosts: add --launcher ssh"),
    (f"--launcher ssh {SYNC}", "CUDA_VISIBLE_DEVICES='GPU-5fa2' names GPUs of a single"),
])  # fmt: skip
def test_mistakes_are_one_line(tmp_path, monkeypatch, line, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("192.0.2.1\n192.0.2.2\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5fa2")
    with pytest.raises((ConfigError, DataError)) as caught:
        main(["-n", "2", "-s", "2", *line.split()], ["/no/server"])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_parts_of_a_command_line() -> None:
    """A command starts with two dashes or the first word that is no option."""
    found = parsed("-n 4 -s 2 -- python x.py --foo -s 3")
    assert (found.servers, found.command) == (2, "python x.py --foo -s 3".split())
    command = "python -u classify.py --kv-store dist_gsync --lr-factor .94 --help -- x"
    assert parsed(f"-n 4 -s 2 {command}").command == command.split()
    # As MXNet's and dmlc-core's launchers take them.
    names = "--num-workers=5 --num-servers 3 --host-file a --hostfile hosts --dmlc-interface eth1"
    found = parsed(f"{names} --cluster ssh -p 0 -- python classify.py --lr 1")
    assert found == parsed("-H hosts -n 5 -s 3 -i eth1 --launcher ssh python classify.py --lr 1")
    assert (found.workers, found.hosts, found.launcher) == (5, Path("hosts"), "ssh")
    assert parsed("-n 5 python x.py").servers == 5


def test_no_hint_is_for_an_option_of_the_program_that_it_starts() -> None:
    own = {*names_of("classify.py"), *images.SYNONYMS}
    assert not [name for name in own if hint_for(name, "options of the launcher")]


@pytest.mark.parametrize(("command", "groups", "shares"), [
    ("x.py --kv-store dist_gsync --data-allocator 1", "groups", "data_sharding"),
    ("x.py --kv-store=dist_gsync --data-allocator=0", "groups", None),
    ("x.py --kv-store dist_gsync --data-allocator 1 --kv-store dist_async --data-allocator=0",
     None, None),
    ("x.py --kv-store dist_async --data-allocator 1", None, "data_sharding"),
    ("x.py", None, None),
])  # fmt: skip
def test_files_of_this_folder_are_taken(tmp_path, monkeypatch, capsys, command, groups, shares):
    monkeypatch.chdir(tmp_path)
    options = parsed(f"-n 4 -s 2 -- {command}")
    of_command = launcher._options_of(options.command)
    assert launcher._with_files_of_this_folder(options, of_command) == options
    for name in ("groups", "data_sharding"):
        Path(name).touch()
    found = launcher._with_files_of_this_folder(options, of_command)
    assert found.groups == (Path(groups) if groups else None)
    assert found.data_sharding == (Path(shares) if shares else None)
    named = [name for name in (groups, shares) if name]
    assert [line.split()[2].rstrip(",") for line in capsys.readouterr().err.splitlines()] == named
    given = replace(options, groups=Path("other"), data_sharding=Path("others"))
    assert launcher._with_files_of_this_folder(given, of_command) == given


def test_a_host_is_copied_to_once_before_it_is_asked(tmp_path, monkeypatch, capsys) -> None:
    def copy_to(hosts, names) -> list[str]:
        return [f"{hosts} got {names}"]

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(sync, "copy_to", copy_to)
    monkeypatch.setattr(ssh, "ask", Mock(side_effect=ConfigError("nobody is there")))
    (tmp_path / "hosts").write_text("127.0.0.1\n127.0.0.2\n127.0.0.1\n")
    line = f"-n 3 -H {tmp_path}/hosts --launcher ssh --sync=a,b -- x.py --kv-store dist_sync"
    with pytest.raises(ConfigError, match="nobody is there"):
        main(line.split())
    assert capsys.readouterr().err == "launch: ['127.0.0.1', '127.0.0.2'] got ('a', 'b')\n"


@pytest.mark.parametrize(("measured", "groups"), [
    ((100, 100, 100, 100), ((0, 1, 2, 3),)),
    ((25, 100, 24.6, 98), ((1, 3), (0, 2))),
    ((400, 396, 203, 199, 99, 101), ((0, 1), (2, 3), (4, 5))),
    ((100, 101, 99, 12), ((0, 1, 2), (3,))),
])  # fmt: skip
def test_similar_workers_are_a_group_the_fastest_first(measured, groups):
    assert autogroup.group(measured) == groups


def test_noise_of_a_few_percent_is_no_structure():
    for noise in np.random.default_rng(0).uniform(0.98, 1.02, (3, 6)):
        assert autogroup.group(noise * 100) == ((0, 1, 2, 3, 4, 5),)
        assert autogroup.group(noise * (100, 30, 100, 30, 100, 30)) == ((0, 2, 4), (1, 3, 5))


def test_shares_follow_the_slowest_of_each_group():
    shares = autogroup.shares(((0, 2), (1, 3)), (100, 25, 105, 30))
    assert list(shares) == [(0, 0.4), (0.4, 0.5), (0.5, 0.9), (0.9, 1)]


@pytest.mark.parametrize(("hosts", "speeds", "count", "placed"), [
    ("abc", (50, 100, 70), 2, [("b", 100), ("c", 70)]),
    ("aabc", (50, 60, 100, 100), 3, [("a", 110), ("b", 100), ("c", 100)]),
    # More servers than machines share the speed of theirs.
    ("ab", (50, 100), 3, [("b", 50), ("a", 50), ("b", 50)]),
])  # fmt: skip
def test_servers_are_on_the_fastest_machines_first(hosts, speeds, count, placed):
    assert autogroup.servers(hosts, speeds, count) == placed


@pytest.fixture
def autogrouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(speeds: list[float], *options: str, reports: int = 4, status: int = 0) -> int:
        program = REPORT.format(speeds=speeds, reports=reports, status=status)
        words = ["-n", str(len(speeds)), *options, "--", sys.executable, "-c", program]
        words += "--kv-store dist_gsync --data-allocator=1 --rebalance 3 --lr 0.1".split()
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
    addresses = ("127.0.0.1", *read_hosts(Path("machines"), 4).addresses[1:])
    found, said_of_shares = read_shares(shares, addresses)
    assert found == ((0, 0.4), (0.4, 0.5), (0.5, 0.9), (0.9, 1)) and len(said_of_shares) == 4
    assert Path("servers").read_text() == "127.0.0.10 126.5\nlocalhost 100\n"
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
