"""A launcher's command line, whose command has options of its own."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parallel import autogroup
from parallel.launch import launcher
from parallel.launch.__main__ import main
from parallel.launch.launcher import JobOptions, add_options, parse
from runtime.command_line import Parser
from runtime.errors import ConfigError


def parsed(line: str) -> dict[str, Any]:
    parser: argparse.ArgumentParser = Parser()
    add_options(parser)
    return parse(parser, line.split())


@pytest.mark.parametrize("run", [main, autogroup.main], ids=["launch", "autogroup"])
@pytest.mark.parametrize(
    ("command", "first"),
    [
        ("python x.py --foo", "--foo"),
        ("python -m x", "-m"),
        # An option of the launcher, which was not meant for it.
        ("python x.py -s 3", "-s"),
        ("python x.py --kv-store dist_gsync --lr-factor 0.94", "--kv-store"),
    ],
)
def test_a_command_with_options_needs_two_dashes_before_it(
    run: Any, command: str, first: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        run(["-n", "4", "-s", "2", *command.split()])
    assert str(caught.value).startswith(f"{first} stands behind the command")
    assert f"put -- before the command, as in -n 4 -s 2 -- {command.split()[0]}" in str(
        caught.value
    )


def test_with_two_dashes_all_of_it_is_the_command() -> None:
    found = parsed("-n 4 -s 2 -- python x.py --foo -s 3")
    assert (found["servers"], found["command"]) == (2, "python x.py --foo -s 3".split())
    assert parsed("-n 4 -s 2 python x.py")["command"] == ["python", "x.py"]


def test_an_unknown_option_of_the_launcher_is_its_own_mistake() -> None:
    for line in ("-n 4 -s 2 --cluster ssh -- python x.py", "-n 4 -s 2 --cluster ssh python x.py"):
        with pytest.raises(ConfigError, match="unrecognized arguments: --cluster"):
            parsed(line)


@pytest.mark.parametrize(
    ("command", "groups", "shares"),
    [
        ("x.py --kv-store dist_gsync --data-allocator 1", "groups", "data_sharding"),
        ("x.py --kv-store=dist_gsync --data-allocator=0", "groups", None),
        ("x.py --kv-store dist_async --data-allocator 1", None, "data_sharding"),
        ("x.py --kv-store dist_sync", None, None),
        ("x.py", None, None),
    ],
)
def test_files_of_this_folder_are_taken_where_they_are_needed(
    command: str, groups: str, shares: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    options = JobOptions(**parsed(f"-n 4 -s 2 -- {command}"))
    assert launcher._with_files_of_this_folder(options) == options
    for name in ("groups", "data_sharding"):
        Path(name).touch()
    found = launcher._with_files_of_this_folder(options)
    assert found.groups == (Path(groups) if groups else None)
    assert found.data_sharding == (Path(shares) if shares else None)
    named = [name for name in (groups, shares) if name]
    assert [line.split()[2].rstrip(",") for line in capsys.readouterr().err.splitlines()] == named


def test_files_that_were_given_stay(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("groups").touch()
    words = parsed("-n 4 -s 2 -- x.py --kv-store dist_gsync")
    options = JobOptions(**words, groups=Path("other"))
    assert launcher._with_files_of_this_folder(options).groups == Path("other")


def test_servers_are_where_and_as_fast_as_their_file_says(tmp_path: Path) -> None:
    workers = ("a", "a", "b")
    options = JobOptions(**parsed("-n 3 -s 3 -- x.py"))
    assert launcher._servers(options, workers) == (["a", "b", "a"], ())
    path = tmp_path / "servers"
    path.write_text("b 2\na 1\na 1\n")
    named = replace(options, server_hosts=path)
    assert launcher._servers(named, workers) == (("b", "a", "a"), (2.0, 1.0, 1.0))
    with pytest.raises(ConfigError, match="has the speeds of the servers, too"):
        launcher._servers(replace(named, server_speeds=(1.0, 1.0, 1.0)), workers)
