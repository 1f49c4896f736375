from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parallel import autogroup
from parallel.launch import launcher
from parallel.launch.__main__ import main
from parallel.launch.cluster_files import WorkerHosts
from parallel.launch.options import JobOptions, add_options, parse
from parallel.launch.originals import PROGRAMS
from parallel.parameter_server.schemes import SCHEMES
from runtime.command_line import Parser
from runtime.errors import ConfigError, DataError
from tests.support import mxnet_g
from tests.support.typed import names_of
from training.config import originals


def parsed(line: str) -> dict[str, Any]:
    parser = Parser()
    add_options(parser)
    return parse(parser, line.split())


SYNC = "-- x.py --kv-store dist_sync"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        # An option of the launcher, of which nobody knows whether it is meant for it.
        ("python x.py -s 3", "-s stands after the command 'python x.py': put it before the"),
        ("--sync=a,,b python x.py", "'a,,b' is no list of files"),
        ("--", "the following arguments are required: command"),
        ("--server-speed 2,1 python x.py", "unrecognized arguments: --server-speed (did you mean"),
        ("--launcher mpi python x.py", "--launcher/--cluster: mpi is not ported; give --launch"),
        ("--launcher lokal python x.py", "--launcher/--cluster: 'lokal' is not local or ssh"),
        ("--sync-dst-dir /tmp/x python x.py", "--sync-dst-dir is not an option here: all hosts"),
        ("--slurm-worker-nodes 2 x", "--slurm-worker-nodes is not an option here: leave it"),
        ("python train_cifar10.py --kv-store dist_sync", "train_cifar10.py is not in this folder"),
        ("-- x.py --kv-store horovod", "--kv-store horovod has no servers"),
        ("-- x.py --kv-store dist_asinc", "(did you mean 'dist_async'?)"),
        ("-- x.py", "the command has no --kv-store; give it one of dist_sync"),
        ("-- x.py --kv-store dist_gsync", "needs --groups FILE; python -m parallel.autogroup"),
        (f"--tolerate-workers {SYNC}", "workers wait for each other"),
        (f"--data-sharding x {SYNC}", "add --data-allocator 1"),
        (f"--server-speeds 2 {SYNC}", "has 1 numbers, but there are 2"),
        (f"--server-speeds 2,1 {SYNC}", "those of one machine need the same"),
        *((f"--server-speeds 2,{x} {SYNC}", "no list of positive num") for x in ("0", "inf", "x")),
        (f"--server-hosts f --server-speeds 2,1 {SYNC}", "has the speeds of the servers, too"),
        (f"--bucket-elements 1023 {SYNC}", "1023 is not from 1024 (MXNet's"),
        (f"-i ethx {SYNC}", "-i ethx: no such network interface"),
        (f"-H /nowhere {SYNC}", "/nowhere cannot be read as a list of"),
        (f"-H hosts {SYNC}", "host 192.0.2.1 cannot be reached on -i"),
        (f"--sync {SYNC}", "--sync copies to other hosts: add --launcher ssh"),
        (f"--launcher ssh {SYNC}", "CUDA_VISIBLE_DEVICES='GPU-5fa2' names GPUs of a single"),
        (f"-n 0 {SYNC}", "-n/--num-workers: '0' is not a positive integer"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, line, message) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hosts").write_text("192.0.2.1\n192.0.2.2\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5fa2")
    with pytest.raises((ConfigError, DataError)) as caught:
        main(["-n", "2", "-s", "2", *line.split()], ["/no/server"])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_parts_of_a_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A command starts with two dashes or the first word that is no option."""
    found = parsed("-n 4 -s 2 -- python x.py --foo -s 3")
    assert (found["servers"], found["command"]) == (2, "python x.py --foo -s 3".split())
    command = "python -u classify.py --kv-store dist_gsync --lr-factor .94 --help -- x"
    assert parsed(f"-n 4 -s 2 {command}")["command"] == command.split()
    with pytest.raises(ConfigError, match="-s stands after the command"):
        autogroup.main("-n 4 python x.py -s 3".split())
    # As MXNet's and dmlc-core's launchers take them.
    typed = "-H hosts -n 5 -s 3 -i eth1 --launcher ssh -H hosts2 python classify.py --lr 1"
    later = (
        "--num-workers=5 --num-servers 3 --host-file hosts --hostfile hosts2 --dmlc-interface eth1 "
        "--cluster ssh -- python classify.py --lr 1"
    )
    found = parsed(typed)
    assert found == parsed(later)
    assert (found["workers"], found["servers"], found["interface"]) == (5, 3, "eth1")
    assert (found["hosts"], found["launcher"]) == (Path("hosts2"), "ssh")
    # As many servers as workers, where there is no number.
    assert parsed("-n 5 python x.py")["servers"] == 5
    assert capsys.readouterr().err == ""
    assert "partition" not in parsed("-p 0 -n 5 python x.py")
    assert capsys.readouterr().err.startswith("launch: -p 0 makes no difference")


@mxnet_g.NEEDED
def test_every_program_of_mxnet_g_that_trains_is_answered() -> None:
    names = {path.name for path in mxnet_g.EXAMPLE.glob("train_*.py")} - {"train_model.py"}
    assert names == set(PROGRAMS)


def test_no_option_of_the_launcher_is_one_of_the_programs_that_it_starts() -> None:
    """Otherwise the command would need ``--`` after all."""
    parser = Parser()
    add_options(parser)
    own = set(parser.names())
    assert {"-n", "-s", "-H", "--hostfile", "-p", "--sync"} <= own
    assert not own & {*names_of("classify.py"), *originals.SYNONYMS}


@pytest.mark.parametrize(
    ("command", "groups", "shares"),
    [
        ("x.py --kv-store dist_gsync --data-allocator 1", "groups", "data_sharding"),
        ("x.py --kv-store=dist_gsync --data-allocator=0", "groups", None),
        ("x.py --kv-store dist_async --data-allocator 1", None, "data_sharding"),
        ("x.py", None, None),
    ],
)
def test_files_of_this_folder_are_taken_where_they_are_needed(
    tmp_path, monkeypatch, capsys, command, groups, shares
) -> None:
    monkeypatch.chdir(tmp_path)
    options = JobOptions(**parsed(f"-n 4 -s 2 -- {command}"))
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


def test_what_makes_no_difference_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for scheme, said in (
        ("dist_sync", "--groups g makes no difference to --kv-store dist_sync"),
        ("dist_ssync", "--kv-store dist_ssync without --staleness: it is 0, no worker runs ahead"),
    ):
        options = replace(JobOptions(**parsed("-n 4 -- x.py")), groups=Path("g"))
        assert launcher._checked_scheme(options, {"--kv-store": scheme}) == SCHEMES[scheme]
        assert f"launch: {said}\n" in capsys.readouterr().err


def test_servers_are_where_and_as_fast_as_their_file_says(tmp_path: Path) -> None:
    workers = WorkerHosts(("a", "a", "b"), ("a:2", "a:2", "b"))
    options = JobOptions(**parsed("-n 3 -s 3 -- x.py"))
    assert launcher._servers(options, workers) == (["a:2", "b", "a:2"], ())
    path = tmp_path / "servers"
    path.write_text("b 2\na 1\na 1\n")
    named = replace(options, server_hosts=path)
    assert launcher._servers(named, workers) == (["b", "a:2", "a:2"], (2.0, 1.0, 1.0))
