"""What is changed of Horovod's launcher, beside what jobs on two hosts show."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from horovod.runner import launch

from runtime.errors import ConfigError, UserError
from tests.support.stranger import AS_ROOT, answer_to_a_stranger

PROGRAM = Path(__file__).resolve().parents[2] / "setup-utils/horovodrun.py"
# The shell of the other host gets one string.
SSH = """\
#!/usr/bin/env bash
echo "${*:1:$#-1}" >"$CALL"
exec bash -c "${*: -1}"
"""


@pytest.fixture
def horovodrun(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, whose options and reader of files Horovod's launcher has."""
    spec = importlib.util.spec_from_file_location("horovodrun", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    changed = SimpleNamespace(**{**vars(argparse), "ArgumentParser": module.Options})
    monkeypatch.setattr(launch, "argparse", changed)
    return module


def parsed(horovodrun: ModuleType, *words: str) -> Any:
    """The command line as Horovod goes on with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["horovodrun", *words])
        return horovodrun.parse_args()


def refusal(horovodrun: ModuleType, *words: str) -> str:
    """The line with which a command line is refused."""
    with pytest.raises(UserError) as raised:
        parsed(horovodrun, *words)
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


def run(*words: str, script: str = "") -> subprocess.CompletedProcess[str]:
    """Run the program, or a script that changes it before."""
    command = ["-c", script] if script else [str(PROGRAM), *words]
    variables = {name: value for name, value in os.environ.items() if name != "NIC"}
    return subprocess.run(
        [sys.executable, *command], env=variables, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


def test_a_command_reaches_another_host_as_it_is(horovodrun, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("HOST_TIMEOUT", "40")
    monkeypatch.setenv("CALL", str(tmp_path / "call"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    rank = f"cd {shlex.quote(str(folder))} ; env X='1  2' sh -c 'echo \"$X\" $(pwd); exit 3'"
    command = horovodrun.remote_command(shlex.quote(rank), "ip2", 77, "a key")
    said = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (said.stdout, said.stderr, said.returncode) == (f"1  2 {folder}\n", "", 3)
    with pytest.raises(ConfigError, match="host '-Fx.conf' is not a name"):
        horovodrun.remote_command("true", "-Fx.conf")
    call = (tmp_path / "call").read_text()
    assert "StrictHostKeyChecking=no -p 77 -i a key -o BatchMode=yes -o ServerAlive" in call
    assert call.endswith(" ip2\n")


def test_a_rank_that_fails_is_named_with_its_host(horovodrun, monkeypatch, capsys) -> None:
    statuses = iter([0, 137])
    start = lambda *_: (next(statuses), 0.0)  # noqa: E731
    monkeypatch.setattr(horovodrun, "_gloo_starter", lambda settings: start)
    start_rank = horovodrun.starter(None)
    for rank in (0, 1):
        start_rank("true", SimpleNamespace(rank=rank, hostname=f"ip{rank + 1}"), [])
    assert capsys.readouterr().out == "rank 1 on ip2 has ended with status 137\n"


def test_lists_of_hosts_mean_what_they_mean_to_mpirun(horovodrun, tmp_path) -> None:
    file = tmp_path / "hosts"
    for data in (
        b"ip1 slots=2\r\nip2 slots=1\r\n",
        b"\xef\xbb\xbfip1:2\nip2\n",
        b"ip1\nip2 # slow\n\nip1\n",
    ):
        file.write_bytes(data)
        found = parsed(horovodrun, "-np", "3", "--hostfile", str(file), "true")
        assert (found.hosts, found.hostfile) == ("ip1:2,ip2:1", None)
    assert parsed(horovodrun, "-np", "3", "-H", " ip1:1, ip2 ,ip1,", "true").hosts == "ip1:2,ip2:1"
    # With abbreviations, --network would be an ambiguous option of Horovod.
    found = parsed(horovodrun, *"-np 2 echo --network r50 --check".split())
    assert (found.hosts, found.num_proc) == (None, 2)
    assert found.command == ["echo", "--network", "r50", "--check"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("-np 2 -H [::1]:2 true", "IPv6"),
        ("-np 2 -H a:0 true", "has '0' for slots"),
        ("-np 3 -H a:1,b:1 true", "-np 3 is more ranks than the 2 slots of -H a:1,b:1"),
        ("-np 2 --hostfile /nowhere true", "/nowhere cannot be read as a list of hosts"),
        ("-np 2 --output-filename /proc/x true", "--output-filename /proc/x is no folder, and"),
        ("-H localhost:2 true", "the following arguments are required: -np/--num-proc"),
        ("-np two true", "-np/--num-proc: invalid int value: 'two'"),
        ("-np 2 --nothing true", "unrecognized arguments: --nothing"),
        # No abbreviations.
        ("-np 2 --hostf /nowhere true", "unrecognized arguments: --hostf"),
        ("-np 2 -H a --hostfile b true", "not allowed with argument"),
        ("-np 2", "there is no program to start"),
        ("-np 0 true", "-np 0 is not a number of ranks"),
        ("-np 2 --config-file /nowhere true", "--config-file: Horovod's files of options are not"),
    ],
)
def test_a_wrong_command_line_is_one_line(horovodrun, words: str, reason: str) -> None:
    assert reason in refusal(horovodrun, *words.split())


def test_the_program_passes_mistakes_on(horovodrun, monkeypatch) -> None:
    said = run("-np", "3", "-H", "a:1,b:1", "true")
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert said.stderr.startswith("error: ")
    monkeypatch.setattr(launch, "check_build", lambda verbose: sys.exit(0))
    with pytest.raises(SystemExit, match="0"):
        parsed(horovodrun, "--check")


def elastic_options() -> list[str]:
    """All spellings, as the installed Horovod has them."""
    found: list[str] = []

    class Recorder(argparse.ArgumentParser):
        def parse_args(self, *_: object) -> Any:  # type: ignore[override]
            (group,) = [one for one in self._action_groups if one.title == "elastic arguments"]
            for action in group._group_actions:
                found.extend(action.option_strings)
            raise InterruptedError

    changed = SimpleNamespace(**{**vars(argparse), "ArgumentParser": Recorder})
    with pytest.MonkeyPatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr(launch, "argparse", changed)
        launch.parse_args()
    return [*found, "--host-discovery-script"]


def test_the_elastic_mode_is_closed(horovodrun) -> None:
    """With its reason, whatever else is missing or wrong in the command line."""
    names = elastic_options()
    known = "--min-np --min-num-proc --max-np --max-num-proc --slots-per-host --elastic-timeout "
    known += "--reset-limit --blacklist-cooldown-range --host-discovery-script"
    assert set(known.split()) == set(names)
    for name in names:
        for words in (
            ("-np", "2", name, "1", "2", "true"), (f"{name}=1", "true"), (name, "x", "true"),
            ("-np", "2", "-H", "a:1,b:1", name, "2", "3", "true"), ("-np", "2", name),
        ):  # fmt: skip
            said = refusal(horovodrun, *words)
            assert said.startswith(f"{name}: Horovod's elastic and run-function modes are closed")
            assert "CVE-2024-10190" in said and "bash run.sh --restarts 10" in said
        # They belong to the program.
        assert parsed(horovodrun, "-np", "2", "train", name, "1").command == ["train", name, "1"]


@pytest.mark.parametrize("name", ["min_num_proc", "host_discovery_script", "run_func"])
def test_what_starts_the_modes_is_closed(name: str) -> None:
    """Also where no option of this version leads."""
    said = run(
        script="import runpy, sys\n"
        "from horovod.runner import launch\n"
        "parse = launch.parse_args\n"
        f"launch.parse_args = lambda: (setattr(options := parse(), {name!r}, 2), options)[1]\n"
        "sys.argv = ['horovodrun', '-np', '1', 'true']\n"
        f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
    )
    assert (said.returncode, said.stdout, said.stderr.count("\n")) == (2, "", 1)
    assert said.stderr.startswith("error: Horovod's elastic and run-function modes are closed")


def test_interfaces_of_its_own_option_are_those_of_this_host(horovodrun) -> None:
    for name in (".", "..", "", "none", "lo;touch made", "l" * 300):
        with pytest.raises(ConfigError, match="^--network-interface .*: no such network interface"):
            horovodrun.interfaces(SimpleNamespace(nics={name}, verbose=0), ["ip1"], ["ip1"], None)
    found = horovodrun.interfaces(SimpleNamespace(nics={"lo"}, verbose=0), ["ip1"], ["ip1"], None)
    assert found == {"lo"}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        # Horovod raises plain exceptions, and its threads would keep the process.
        (
            "def find(*arguments):\n"
            "    threading.Thread(target=time.sleep, args=(600,)).start()\n"
            "    raise Exception('Unable to find a set')\n"
            "scope['_find_interfaces'] = find\n"
            "module['interfaces'](SimpleNamespace(nics=None), ['a'], ['a'], None)\n",
            "error: the hosts find no interface by which all reach each other (Unable to find a set"
            "); choose one, as in NIC=eth1, and let its ports through between the hosts\n",
        ),
        (
            "scope['_SEARCH_SERVICE'] = 'raise SystemExit(7)'\n"
            "module['launch_search'](['a'], ['a'], None, None)\ntime.sleep(60)\n",
            "error: the search for common interfaces has failed on host a: no reason given; choose "
            "an interface for all hosts, as in NIC=eth1\n",
        ),
    ],
)
def test_a_search_that_fails_is_one_line(lines: str, reason: str) -> None:
    imports = "import runpy, threading, time\nfrom types import SimpleNamespace\n"
    module = f"module = runpy.run_path({str(PROGRAM)!r})\n"
    module += "scope = module['interfaces'].__globals__\n"
    said = run(script=f"{imports}{module}{lines}")
    assert (said.returncode, said.stdout, said.stderr) == (2, "", reason)


@AS_ROOT
def test_the_rendezvous_on_this_host_does_not_answer_other_users(horovodrun, monkeypatch) -> None:
    def start(*_: object) -> None:
        server, port = horovodrun.http_server.find_port(
            lambda address: HTTPServer(address, BaseHTTPRequestHandler)
        )
        with server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            assert answer_to_a_stranger(port) == b""
            server.shutdown()

    monkeypatch.setattr(horovodrun, "_start_ranks", start)
    monkeypatch.setattr(horovodrun.http_server, "find_port", None)
    horovodrun.launch_gloo(None, None, None, None, {}, "127.0.0.1")
