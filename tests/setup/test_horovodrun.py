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

from runtime.errors import ConfigError
from tests.support.stranger import AS_ROOT, answer_to_a_stranger

PROGRAM = Path(__file__).resolve().parents[2] / "setup-utils/horovodrun.py"
# The shell of the other host gets one string.
SSH = """\
#!/usr/bin/env bash
echo "${*:1:$#-1}" >"$CALL"
exec bash -c "${*: -1}"
"""


@pytest.fixture(scope="module")
def horovodrun() -> ModuleType:
    spec = importlib.util.spec_from_file_location("horovodrun", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    run = horovodrun.starter(None)
    for rank in (0, 1):
        run("true", SimpleNamespace(rank=rank, hostname=f"ip{rank + 1}"), [])
    assert capsys.readouterr().out == "rank 1 on ip2 has ended with status 137\n"


NOTHING_GIVEN = {
    **dict.fromkeys(("hosts", "hostfile", "num_proc", "output_filename")),
    "command": ["true"],
}


def parsed(horovodrun, monkeypatch, **given) -> SimpleNamespace:
    """The command line as Horovod goes on with it."""
    options = SimpleNamespace(**{**NOTHING_GIVEN, **given})
    monkeypatch.setattr(horovodrun, "_parse", lambda: options)
    return horovodrun.parse_args()


@pytest.mark.parametrize(
    "data",
    [b"ip1 slots=2\r\nip2 slots=1\r\n", b"\xef\xbb\xbfip1:2\nip2\n", b"ip1\nip2 # slow\n\nip1\n"],
)
def test_lists_of_hosts_mean_what_they_mean_to_mpirun(
    horovodrun, monkeypatch, tmp_path, data
) -> None:
    (tmp_path / "hosts").write_bytes(data)
    found = parsed(horovodrun, monkeypatch, hostfile=str(tmp_path / "hosts"), num_proc=3)
    assert (found.hosts, found.hostfile) == ("ip1:2,ip2:1", None)
    found = parsed(horovodrun, monkeypatch, hosts=" ip1:1, ip2 ,ip1,", num_proc=3)
    assert (found.hosts, found.hostfile) == ("ip1:2,ip2:1", None)
    assert parsed(horovodrun, monkeypatch, num_proc=3).hosts is None


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"hosts": "[::1]:2"}, "IPv6"),
        ({"hosts": "a:0"}, "has '0' for slots"),
        ({"hosts": "a:1,b:1", "num_proc": 3}, "-np 3 is more ranks than the 2 slots of -H a:1,b:1"),
        ({"hostfile": "/nowhere"}, "/nowhere cannot be read as a list of hosts"),
        ({"output_filename": "/proc/x"}, "--output-filename /proc/x is no folder, and cannot be"),
    ],
)
def test_lists_that_cannot_be_used(horovodrun, monkeypatch, capsys, given, reason) -> None:
    options = SimpleNamespace(**{**NOTHING_GIVEN, **given})
    monkeypatch.setattr(horovodrun, "_parse", lambda: options)
    monkeypatch.setattr(sys, "argv", ["horovodrun"])
    with pytest.raises(SystemExit) as raised:
        horovodrun.main()
    said = capsys.readouterr().err
    assert raised.value.code == 2 and said.startswith("error: ") and reason in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("-H localhost:2 true", "the following arguments are required: -np/--num-proc"),
        ("-np two true", "-np/--num-proc: invalid int value: 'two'"),
        ("-np 2 --nothing true", "unrecognized arguments: --nothing"),
        # No abbreviations.
        ("-np 2 --hostf /nowhere true", "unrecognized arguments: --hostf"),
        ("-n 2 true", "the following arguments are required: -np/--num-proc"),
        ("-c", "the following arguments are required: -np/--num-proc"),
        ("-np 2 -H a --hostfile b true", "not allowed with argument"),
        ("-np 2", "there is no program to start"),
        ("-np 0 true", "-np 0 is not a number of ranks"),
        ("-np 2 --config-file /nowhere true", "/nowhere cannot be read"),
    ],
)
def test_a_wrong_command_line_is_one_line(words: str, reason: str) -> None:
    said = subprocess.run(
        [sys.executable, PROGRAM, *words.split()], capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stdout) == (2, ""), said.stderr
    assert said.stderr.startswith("error: ") and reason in said.stderr
    assert len(said.stderr.splitlines()) == 1


def test_options_by_their_whole_names(horovodrun, monkeypatch) -> None:
    changed = SimpleNamespace(**{**vars(argparse), "ArgumentParser": horovodrun.Options})
    monkeypatch.setattr(horovodrun.launch, "argparse", changed)
    # With abbreviations, --network is an ambiguous option of Horovod.
    monkeypatch.setattr(sys, "argv", ["horovodrun", *"-np 2 echo --network r50 --check".split()])
    found = horovodrun.parse_args()
    assert (found.num_proc, found.command) == (2, ["echo", "--network", "r50", "--check"])
    monkeypatch.setattr(sys, "argv", ["horovodrun", "--check"])
    monkeypatch.setattr(horovodrun.launch, "check_build", lambda verbose: sys.exit(0))
    with pytest.raises(SystemExit, match="0"):
        horovodrun.parse_args()


@pytest.fixture
def options(horovodrun, monkeypatch) -> ModuleType:
    """Horovod's launcher, with the options and the reader of files as they are changed."""
    changed = SimpleNamespace(**{**vars(argparse), "ArgumentParser": horovodrun.Options})
    monkeypatch.setattr(launch, "argparse", changed)
    reader = SimpleNamespace(load=horovodrun.read_config, FullLoader=None)
    monkeypatch.setattr(launch, "yaml", reader)
    return horovodrun


def refusal(options, monkeypatch, *words: str) -> str:
    """The line with which a command line is refused."""
    monkeypatch.setattr(sys, "argv", ["horovodrun", *words])
    with pytest.raises(ConfigError) as raised:
        options.parse_args()
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


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


ELASTIC = elastic_options()


def test_the_spellings_are_those_of_horovod() -> None:
    names = "--min-np --min-num-proc --max-np --max-num-proc --slots-per-host --elastic-timeout "
    names += "--reset-limit --blacklist-cooldown-range --host-discovery-script"
    assert set(names.split()) == set(ELASTIC)


@pytest.mark.parametrize("name", ELASTIC)
def test_the_elastic_mode_is_closed(options, monkeypatch, name: str) -> None:
    """With its reason, whatever else is missing or wrong in the command line."""
    for words in (
        ("-np", "2", name, "1", "2", "true"), (f"{name}=1", "true"), (name, "x", "true"),
        ("-np", "2", "-H", "a:1,b:1", name, "2", "3", "true"), ("-np", "2", name),
    ):  # fmt: skip
        said = refusal(options, monkeypatch, *words)
        assert said.startswith(f"{name}: Horovod's elastic and run-function modes are closed here")
        assert "CVE-2024-10190" in said and "bash run.sh --restarts 10" in said
    # They belong to the program.
    monkeypatch.setattr(sys, "argv", ["horovodrun", "-np", "2", "train", name, "1"])
    assert options.parse_args().command == ["train", name, "1"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("min-np: 1\n", "has min-np: Horovod's elastic"),
        ("elastic:\n  min-num-proc: 1\n", "has elastic: Horovod's elastic"),
        ("params:\n  host_discovery_script: x\n", "has host_discovery_script: Horovod's elastic"),
        ("- params\n", "is no table of options"),
        ("", "is no table of options"),
        ("a: [\n", "is no YAML"),
        ("a: !!python/object/apply:os.system [touch made]\n", "is no YAML"),
        ("a: !!python/name:os.system\n", "is no YAML"),
        ("a: 2001-99-99\n", "is no YAML"),
        ("[" * 5000, "is no YAML"),
    ],
)
def test_files_of_options(options, monkeypatch, tmp_path, text: str, reason: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config").write_text(text)
    said = refusal(options, monkeypatch, "-np", "2", "--config-file", "config", "true")
    assert said.startswith("--config-file config ") and reason in said
    assert not Path("made").exists()
    Path("config").write_text("params:\n  cycle-time-ms: 3\n  cycle_time_ms: 4\nlogging: {}\n")
    monkeypatch.setattr(sys, "argv", "horovodrun -np 2 --config-file config true".split())
    assert options.parse_args().cycle_time_ms == 4


@pytest.mark.parametrize("name", ["min_num_proc", "host_discovery_script", "run_func"])
def test_what_starts_the_modes_is_closed(tmp_path, name: str) -> None:
    """Also where no option of this version leads."""
    script = (
        "import runpy, sys\n"
        "from horovod.runner import launch\n"
        "parse = launch.parse_args\n"
        "def changed():\n"
        "    options = parse()\n"
        f"    options.{name} = 2\n"
        "    return options\n"
        "launch.parse_args = changed\n"
        "sys.argv = ['horovodrun', '-np', '1', 'true']\n"
        f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stdout, len(said.stderr.splitlines())) == (2, "", 1)
    assert said.stderr.startswith("error: Horovod's elastic and run-function modes are closed")


@pytest.mark.parametrize("name", [".", "..", "", "none", "lo;touch made", "l" * 300])
def test_interfaces_of_its_own_option_are_those_of_this_host(horovodrun, name: str) -> None:
    with pytest.raises(ConfigError, match="^--network-interface .*: no such network interface"):
        horovodrun.interfaces(SimpleNamespace(nics={name}, verbose=0), ["ip1"], ["ip1"], None)
    found = horovodrun.interfaces(SimpleNamespace(nics={"lo"}, verbose=0), ["ip1"], ["ip1"], None)
    assert found == {"lo"}


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


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_file_of_options_is_a_file(options, monkeypatch, tmp_path, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("endless").symlink_to("/dev/zero")
    monkeypatch.setattr(launch, "open", options.ConfigFile, raising=False)
    said = refusal(options, monkeypatch, "-np", "2", "--config-file", kind, "true")
    assert said == f"{kind} cannot be read: it is not a regular file"


@pytest.mark.parametrize(
    "text", ["params: 3\n", "timeline: [a]\n", "params: {cycle_time_ms: many}\n"]
)
def test_values_of_other_types_in_a_file_of_options(
    options, monkeypatch, tmp_path, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config").write_text(text)
    said = refusal(options, monkeypatch, "-np", "2", "--config-file", "config", "true")
    assert said.startswith("--config-file: a section or a number in it has another type")


def test_a_search_without_result_is_one_line(tmp_path) -> None:
    """Horovod raises plain exceptions, and its threads would keep the process."""
    script = (
        "import runpy, sys, threading, time\n"
        f"module = runpy.run_path({str(PROGRAM)!r})\n"
        "def find(*arguments):\n"
        "    threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "    raise Exception('Unable to find a set')\n"
        "module['interfaces'].__globals__['_find_interfaces'] = find\n"
        "module['interfaces'](__import__('types').SimpleNamespace(nics=None), ['a'], ['a'], None)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "NIC"}
    said = subprocess.run(
        [sys.executable, "-c", script], env=environment,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr == (
        "error: the hosts find no interface by which all reach each other (Unable to find a set); "
        "choose one, as in NIC=eth1, and let its ports through between the hosts\n"
    )
