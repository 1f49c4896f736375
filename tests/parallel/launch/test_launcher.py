"""A launcher's command line, whose command has options of its own."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from parallel import autogroup
from parallel.launch.__main__ import main
from parallel.launch.launcher import add_options, parse
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
