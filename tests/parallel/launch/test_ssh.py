"""What other hosts get and say before a job starts, with scripts in place of ssh."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from parallel import autogroup
from parallel.host_lists import free_port, is_own_name, resolve
from parallel.launch import ssh, sync
from runtime.errors import ConfigError
from tests.support import processes
from tests.support.launch import ROOT, write_program

# A host is known by its name; what comes after it is the command that it is to run.
HOSTS = """#!/bin/sh
while [ "${1#-o}" != "$1" ]; do shift; done
case $1 in
    healthy) echo "welcome"; exec sh -c "$2" ;;
    unreachable) echo "banner" >&2; echo "connect to host: No route to host" >&2; exit 255 ;;
    silent) exit 255 ;;
    hangs) echo $$ >"$(dirname "$0")/hangs"; exec sleep 300 ;;
    persists) sleep 300 >/dev/null </dev/null & echo $! >"$(dirname "$0")/left"; exec sh -c "$2" ;;
    answers) [ "$2" = true ]; exit ;;
    elsewhere) exec sh -c "cd /nowhere && $2" ;;
    other_interface) exec sh -c "$(echo "$2" | sed 's/ lo / ethx /')" ;;
    other_network) exec sh -c "$(echo "$2" | sed 's/ lo 127.0.0.1 [0-9]*$/ lo 127.0.0.1 1/')" ;;
    chatty) echo "no address" ;;
    wrong) echo '127.0.0.1;true' ;;
esac
"""
# The paths of this test's folder become those of the host's, in which nothing is at first.
SSH = """#!/bin/sh
while [ "${{1#-o}}" != "$1" ]; do shift; done
case $1 in
    unreachable) echo "connect to host: No route to host" >&2; exit 255 ;;
    breaking) command=$(printf %s "$2" | sed 's/tar -C/head -c 1100 | tar -C/') ;;
    *) command=$2 ;;
esac
echo "$1" >>"{folder}/calls"
exec sh -c "$(printf %s "$command" | sed "s#{folder}/here#{folder}/$1#g")"
"""
IMAGE = "train/-a\\b\n$c.png"
PROJECT = {"run.sh": "echo red\n", "room/one's.py": "red = 1\n"}


@pytest.fixture(autouse=True)
def put_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a script in place of ssh; return a function that puts another one there."""

    write_program(tmp_path / "ssh", HOSTS)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return lambda text: write_program(tmp_path / "ssh", text)


def test_hosts_say_their_address_on_the_interface(tmp_path: Path) -> None:
    """Also one whose ssh leaves a master behind."""
    try:
        start = time.monotonic()
        reports = ssh.ask(["healthy", "persists"], "lo", False)
        assert time.monotonic() - start < 60
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    assert reports == dict.fromkeys(("healthy", "persists"), "127.0.0.1")


@pytest.mark.parametrize(("host", "message"), [
    ("unreachable", r"no connection by ssh \(connect to host: No route to host\); it has to"),
    ("silent", r"no connection by ssh \(no reason given\)"),
    ("elsewhere", r".*/nowhere; every host needs the project and its environment in the same"),
    ("other_interface", "-i ethx: no such network interface.*; this machine has"),
    ("other_network", "its address 127.0.0.1 on lo does not reach the launcher's, 127.0.0.1 "),
    *((host, "no reason given; every host needs") for host in ("chatty", "wrong")),
])  # fmt: skip
def test_a_host_that_cannot_take_part_is_a_line_that_names_it(host: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^host {host}:? {message}") as raised:
        ssh.ask(["healthy", host], "lo", False)
    assert "\n" not in str(raised.value)


def test_hosts_that_fail_are_told_with_the_reason(tmp_path: Path, monkeypatch) -> None:
    found = ssh.failures(["answers", "hangs", "unreachable"], 1.0)
    assert list(found) == ["hangs", "unreachable"]
    assert "host); it has to work without a question: ssh -o" in str(found["unreachable"])
    assert str(found["hangs"]).startswith("host hangs: no connection by ssh (no answer in 1 s)")
    monkeypatch.setattr(ssh, "ANSWER_SECONDS", 0.5)
    with pytest.raises(ConfigError, match=r"no connection by ssh \(no answer in 0 s\)"):
        ssh.ask(["hangs"], "lo", False)
    assert not processes.left([int((tmp_path / "hangs").read_text())])
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="the program ssh cannot be started"):
        ssh.check(["a"])


def test_what_libraries_read_is_sent_and_nothing_else() -> None:
    read = "PATH PYTHONPATH NETWORK MXNET_SEED OMPI_MCA_btl CUDA_VISIBLE_DEVICES".split()
    others = (
        "HF_TOKEN http_proxy HOME SSH_AUTH_SOCK MXNET_x%% MY_MXNET_SEED _HOROVOD_SECRET_KEY "
        "BASH_FUNC_module%% OMPI_COMM_WORLD_RANK"
    ).split()
    own = dict.fromkeys((*read, *others), "x")
    assert ssh.variables_to_send(own) == sorted(read)
    for separated in ("HF_TOKEN,http_proxy", " HF_TOKEN  http_proxy,"):
        named = ssh.variables_to_send({**own, "SEND_VARIABLES": separated})
        assert named == sorted((*read, "HF_TOKEN", "http_proxy"))
    # Slurm gives each host its GPUs.
    slurm = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "x", "SLURM_JOB_ID": "7"}
    assert ssh.variables_to_send(slurm) == ["CUDA_DEVICE_ORDER"]
    for text, reason in (
        ("HF_TOKEN=hf_abc", "'HF_TOKEN' is not the name of a variable; give names without values"),
        ("HF_TOKEN MISSING", "MISSING is not set; set it, or leave it out"),
    ):
        with pytest.raises(ConfigError, match=f"^SEND_VARIABLES: {reason}") as raised:
            ssh.variables_to_send({"HF_TOKEN": "x", "SEND_VARIABLES": text})
        assert "hf_abc" not in str(raised.value)
    text = (ROOT / "config.sh").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^([A-Z_]+)=", text, re.MULTILINE)) == ssh.CHOICES


def test_values_arrive_as_they_are_and_the_rest_of_the_input_is_left(tmp_path: Path) -> None:
    values = {"A": 'it\'s "two"\n\nlines\n', "B": "", "C": "$HOME `x` \\ ü", "D": "a=b "}
    show = 'for name in A B C D; do printf "%s|" "${!name}"; done; cat'
    data = ssh.packed(values) + b"TERM\n"
    said = subprocess.check_output([*ssh.RECEIVER, "bash", "-c", show], input=data)
    assert said.decode() == "|".join([*values.values(), "TERM\n"])
    # In a session of ssh, Debian's bash reads .bashrc, which may change PATH again.
    (tmp_path / ".bashrc").write_text("PATH=/elsewhere:$PATH\n")
    session = {"HOME": str(tmp_path), "SSH_CLIENT": "::1 1 22", "PATH": "/usr/bin:/bin"}
    command = [*ssh.RECEIVER, "bash", "-c", "bash -c 'echo $PATH'"]
    data = ssh.packed({"PATH": "/usr/bin:/bin"})
    said = subprocess.check_output(["bash", "-c", shlex.join(command)], input=data, env=session)
    assert said == b"/usr/bin:/bin\n"


def test_groups_connect_at_the_address_of_a_hosts_name(monkeypatch, capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as launcher:
        words = ["ssh", "lo", "127.0.0.1", str(launcher.getsockname()[1])]
        for named, more, said in (
            ("127.0.0.1", ["named"], ""),
            ("127.0.1.1", [], ""),
            ("127.0.1.1", ["named"], "own name, there 127.0.1.1, which is not 127.0.0.1 on -i lo"),
        ):
            monkeypatch.setattr(sys, "argv", [*words, *more])
            monkeypatch.setattr(socket, "gethostbyname", lambda _, named=named: named)
            with pytest.raises(ConfigError, match=said) if said else nullcontext():
                assert ssh.main() == 0 and capsys.readouterr().out == "127.0.0.1\n"


def test_names_and_ports_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port("127.0.0.1")))
        assert taken.getsockname()[1] >= 1024
    assert resolve("127.0.0.3") == "127.0.0.3"
    with pytest.raises(ConfigError, match="host no.such.host.invalid has no known address .*-H"):
        resolve("no.such.host.invalid")
    assert all(map(is_own_name, ("localhost", "127.0.0.1", "127.3.2.1")))
    assert not any(map(is_own_name, ("192.0.2.77", "no-such-name.invalid")))
    monkeypatch.setattr(socket, "gethostname", lambda: "me.invalid")
    assert is_own_name("me.invalid")


@pytest.fixture
def here(tmp_path: Path, put_ssh, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two files in a folder with other things, from which commands are typed."""
    put_ssh(SSH.format(folder=tmp_path))
    folder = tmp_path / "here" / "two words"
    own = {"room/__pycache__/one.pyc": "compiled", "models/big": "none of the project"}
    for name, text in {**PROJECT, **own}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "run.sh").chmod(0o755)
    monkeypatch.setattr(sync, "_PROJECT", folder)
    monkeypatch.setattr(sync, "PROJECT_NAMES", ("room", "run*", "absent.md"))
    monkeypatch.chdir(folder)
    return folder


def on(here: Path, host: str) -> Path:
    return here.parents[1] / host / here.name


def content(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_a_host_gets_what_it_lacks_and_nothing_else_is_touched(here: Path) -> None:
    (here / "cifar" / "train").mkdir(parents=True)
    (here / "cifar" / IMAGE).write_text("image")
    for host, line in zip("ab", sync.copy_to(["a", "b"], ["cifar"])):
        assert content(on(here, host)) == {**PROJECT, f"cifar/{IMAGE}": "image"}
        assert os.access(on(here, host) / "run.sh", os.X_OK)
        assert line == f"{host} got 3 of 3 files"
    there = on(here, "a")
    (there / "cifar" / "own").write_text("a host's own")
    before = (there / "run.sh").stat().st_ino
    assert sync.copy_to(["a"], []) == ["a got 0 of 2 files"]
    (here / "room" / "one's.py").write_text("red = 2\n")
    for number in range(5):
        (here / "room" / f"{number}.py").write_text("x" * 100_000)
    assert sync.copy_to(["a"], []) == ["a got 6 of 7 files"]
    assert (there / "run.sh").stat().st_ino == before
    assert content(there)["room/one's.py"] == "red = 2\n"
    assert content(there)["cifar/own"] == "a host's own"


def test_files_from_elsewhere_through_links_and_no_files(here: Path, tmp_path: Path) -> None:
    data = tmp_path / "here" / "data"
    data.mkdir()
    (data / "train.rec").write_text("records")
    os.mkfifo(data / "pipe")
    (here / "link").symlink_to(data)
    for said in ("a got 4 of 4 files", "a got 0 of 4 files"):
        (line,) = sync.copy_to(["a"], [str(data / "train.rec"), "link"])
        assert line.startswith(said)
    assert (tmp_path / "a" / "data" / "train.rec").read_text() == "records"
    assert content(on(here, "a")) == {**PROJECT, "link/train.rec": "records"}
    # This host, and one that shares the folder, keep their links.
    (line,) = sync.copy_to(["here"], [str(data / "train.rec"), "link"])
    assert line == "here got 0 of 4 files" and (here / "link").is_symlink()
    for name in ("cifar", str(data / "pipe")):
        with pytest.raises(ConfigError, match="^--sync .* is not a file or folder here; na"):
            sync.copy_to(["a"], [name])
    (data / "b").symlink_to("nothing")
    with pytest.raises(ConfigError, match=r"^--sync: .*link/b cannot be read here \(No such"):
        sync.copy_to(["a"], ["link"])


def test_a_host_that_cannot_be_reached_or_written_or_breaks_off(here: Path) -> None:
    there = on(here, "breaking")
    there.mkdir(parents=True)
    (there / "run.sh").write_text("the former\n")
    (on(here, "a") / "run.sh").mkdir(parents=True)
    (here.parents[1] / "b").write_text("no folder")
    for host, reason in (
        ("breaking", "--sync has not copied all files there: not all have arrived"),
        ("a", "--sync has not copied all files there: mv: "),
        ("b", "--sync has not copied all.*mkdir"),
        ("unreachable", r"no connection by ssh \(connect to"),
    ):
        with pytest.raises(ConfigError, match=f"^host {host}: {reason}") as raised:
            sync.copy_to([host], [])
        assert "\n" not in str(raised.value)
    assert content(there) == {"run.sh": "the former\n"} and not list(there.glob(".sync-*"))
    assert (on(here, "a") / "run.sh").is_dir()


def test_the_project_is_what_git_has() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no checkout of git")
    names = {line.split("/")[0] for line in listed.stdout.splitlines()}
    found = {path.name for name in sync.PROJECT_NAMES for path in ROOT.glob(name)}
    assert {name for name in names if not name.startswith(".")} == found


def test_autogroup_reads_and_removes_what_worker_0_has_written_on_its_host(
    tmp_path: Path, put_ssh, monkeypatch
) -> None:
    put_ssh(SSH.format(folder=tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("machines").write_text("away\nfar\n")

    def launch(options, serve) -> int:
        words = options.command
        folder = tmp_path / "away" / Path(words[words.index("--models-root") + 1]).name
        folder.mkdir(parents=True)
        record = {"images_per_second/worker_0": 100, "images_per_second/worker_1": 25}
        (folder / "metrics.jsonl").write_text(8 * (json.dumps(record) + "\n"))
        return 0

    monkeypatch.setattr(autogroup, "launch", launch)
    monkeypatch.setattr(autogroup, "addresses_of_workers", lambda _: ["10.0.0.1", "10.0.0.2"])
    words = "-n 2 -s 1 -H machines --launcher ssh -- python x.py".split()
    assert autogroup.main(words) == 0
    assert Path("groups").read_text() == "away\nfar\n"
    assert not list((tmp_path / "away").iterdir())
    assert sorted((tmp_path / "calls").read_text().split()) == ["away", "away", "far"]
