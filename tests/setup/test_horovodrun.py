"""Programs of setup-utils: Horovod's launcher, MXNet's libraries, releases."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from horovod.runner import gloo_run, launch
from horovod.runner.common.util import env
from horovod.runner.driver import driver_service
from horovod.runner.http import http_server

from runtime.errors import ConfigError
from tests.setup.conftest import loaded
from tests.support.launch import ROOT, write_program
from tests.support.stranger import AS_ROOT, answer_to_a_stranger


@pytest.fixture
def horovodrun(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Yield the module and restore what its ``main`` changes of Horovod and the environment."""
    monkeypatch.setattr(os, "execve", os.execve)
    monkeypatch.setenv("HOST_TIMEOUT", "40")
    monkeypatch.delenv("NIC", raising=False)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ))
        for changed in (gloo_run, launch, env, driver_service, http_server):
            stack.enter_context(mock.patch.dict(vars(changed)))
        yield loaded("horovodrun")


def started(horovodrun: ModuleType, *words: str) -> Any:
    """Run the program up to where Horovod would start ranks and return its options."""
    argv = ["horovodrun", *words]
    with mock.patch.object(sys, "argv", argv), mock.patch.object(launch, "_run") as run:
        horovodrun.main()
    return run.call_args.args[0]


def refusal(horovodrun: ModuleType, capsys, *words: str, start: Any = started) -> str:
    """Return the line with which a command line is refused."""
    with pytest.raises(SystemExit, match="2"):
        start(horovodrun, *words)
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1
    return said.err[len("error: ") :].rstrip("\n")


def test_a_command_reaches_another_host_as_it_is(horovodrun, tmp_path, monkeypatch) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    # The shell of the other host gets one string.
    ssh = f'echo "${{*:1:$#-1}}" >{tmp_path}/call\nexec bash -c "${{*: -1}}"\n'
    write_program(tmp_path / "ssh", ssh)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    rank = f"cd {shlex.quote(str(folder))} ; env X='1  2' sh -c 'echo \"$X\" $(pwd); exit 3'"
    command = horovodrun.remote_command(shlex.quote(rank), "ip2", 77, "a key")
    assert "--send=" in command
    said = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (said.stdout, said.stderr, said.returncode) == (f"1  2 {folder}\n", "", 3)
    call = (tmp_path / "call").read_text()
    assert "StrictHostKeyChecking=no -p 77 -i a key -o BatchMode=yes -o ServerAlive" in call
    assert call.endswith(" ip2\n")
    monkeypatch.setenv("SEND_VARIABLES", "MINE")
    monkeypatch.setenv("MINE", "1")
    sent = [name for name in ("MINE", "NCCL_DEBUG", "SECRET_KEY") if horovodrun.is_sent(name)]
    assert sent == ["MINE", "NCCL_DEBUG"]


def test_ranks_are_words_and_variables_of_this_process(horovodrun, monkeypatch, capsys) -> None:
    statuses, become = iter([0, 137]), []
    start = lambda *_: (next(statuses), 0.0)  # noqa: E731
    monkeypatch.setattr(horovodrun, "_gloo_starter", lambda settings: start)
    start_rank = horovodrun.starter(None)
    for rank in (0, 1):
        start_rank("true", SimpleNamespace(rank=rank, hostname=f"ip{rank + 1}"), [])
    assert capsys.readouterr().out == "rank 1 on ip2 has ended with status 137\n"
    monkeypatch.setattr(horovodrun, "_become", lambda *given: become.append(given))
    horovodrun.start_mpirun("/bin/sh", ["sh", "-c", "mpirun x"], {"A": "1"})
    assert become == [("/bin/sh", ["sh", "-c", "exec mpirun x"], {"A": "1"})]


def test_lists_of_hosts_mean_what_they_mean_to_mpirun(horovodrun, tmp_path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(b"ip1\nip2 # slow\r\n\nip1\n")
    for option in (f"--hostfile {file}", "-H ip1:1,ip2,ip1,"):
        found = started(horovodrun, *f"-np 3 {option} true".split())
        # A home, in which the cache would be, may be missing; and what was found there may be old.
        assert (found.hosts, found.hostfile, found.disable_cache) == ("ip1:2,ip2:1", None, True)
    # With abbreviations, --network would be an ambiguous option of Horovod.
    found = started(horovodrun, *"-np 2 echo --network r50 --check --config-file x".split())
    assert (found.hosts, found.num_proc) == (None, 2)
    assert found.command == "echo --network r50 --check --config-file x".split()


def test_a_wrong_command_line_is_one_line(horovodrun, capsys) -> None:
    for words, reason in (
        ("-np 2 -H a:0 true", "'a:0' is not a host"),
        ("-np 2 --hostfile /nowhere true", "/nowhere cannot be read as a list of hosts"),
        ("-H localhost:2 true", "the following arguments are required: -np/--num-proc"),
        ("-np two true", "-np/--num-proc: invalid int value: 'two'"),
        ("-np 2 --hostf /nowhere true", "unrecognized arguments: --hostf"),
        ("-np 2", "there is no program to start"),
    ):
        assert reason in refusal(horovodrun, capsys, *words.split())


@pytest.mark.parametrize("name", [
    *("--min-np", "--min-num-proc", "--max-np", "--max-num-proc", "--slots-per-host"),
    *("--elastic-timeout", "--reset-limit", "--host-discovery-script"),
])  # fmt: skip
def test_the_elastic_mode_is_closed(horovodrun, capsys, name: str) -> None:
    said = refusal(horovodrun, capsys, "-np", "2", name, "2", "q")
    assert said.startswith("Horovod's elastic and run-function modes are closed")
    assert "CVE-2024-10190" in said and "bash run.sh --restarts 10" in said
    found = started(horovodrun, "-np", "2", "train", name, "1")
    assert found.command == ["train", name, "1"]


def test_files_of_options(horovodrun, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("-np", "2", "--config-file", "config", "true")
    for text, reason in (
        ("a: [\n", "but found '<stream end>' in \"config\", line 2, column 1); correct it"),
        ("a: !!python/object/apply:os.system [touch made]\n", "could not determine a constructor"),
    ):
        Path("config").write_text(text)
        said = refusal(horovodrun, capsys, *words)
        assert said.startswith("--config-file cannot be read as sections of") and reason in said
        assert not Path("made").exists()
    Path("config").write_text("params:\n  cycle-time-ms: 3\n  cycle_time_ms: 4\nlogging: {}\n")
    assert started(horovodrun, *words).cycle_time_ms == 4


@pytest.mark.parametrize(("kind", "status"), [(RuntimeError, "1"), (ValueError, "2")])
def test_errors_of_horovod_are_one_line(horovodrun, monkeypatch, capsys, kind, status) -> None:
    fails = mock.Mock(side_effect=kind("of\nranks"))
    monkeypatch.setattr(launch, "run_commandline", fails)
    with pytest.raises(SystemExit, match=status):
        horovodrun.main()
    assert capsys.readouterr().err == "horovodrun: error: of ranks\n"


def test_the_interfaces_between_hosts(horovodrun, monkeypatch) -> None:
    def ask(chosen: Any, *remote: str, is_gloo: bool = False) -> Any:
        settings = SimpleNamespace(nics=chosen, verbose=0)
        return horovodrun.interfaces(is_gloo, settings, ["a", *remote], remote, None)

    for name in (".", "..", "", "none", "lo;touch made", "l" * 300):
        with pytest.raises(ConfigError, match="^--network-interface .*: no such network interface"):
            ask({name}, "ip1")
    assert ask({"lo"}, "ip1") == {"lo"}
    # Open MPI finds its own; Gloo needs one, that of the route to the other hosts.
    assert ask(None, "ip1") == [] and ask(None, "127.0.0.9", is_gloo=True) == ["lo"]
    with pytest.raises(ConfigError, match="^host no.host.invalid: no address for Gloo .* NIC=eth1"):
        ask(None, "no.host.invalid", is_gloo=True)
    monkeypatch.setenv("NIC", "eth7")
    assert ask(None, "ip1", is_gloo=True) == ["eth7"]
    monkeypatch.setattr(horovodrun, "loopback_variables", lambda: {"CLOSED": "1"})
    monkeypatch.setenv("CLOSED", "0")
    assert ask(None) == ["lo"] and os.environ["CLOSED"] == "1"


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
    monkeypatch.setenv("RANK_OF_TEST", "0")
    horovodrun.launch_gloo(None, None, None, None, {"RANK_OF_TEST": "1"}, "127.0.0.1")
    assert os.environ["RANK_OF_TEST"] == "1"


@pytest.mark.parametrize(
    ("package", "runtime", "cudnn", "mistake"),
    [
        ("", 0, 0, None), ("11.7", 11080, 11000, None), ("11.2", 0, 11020, None),
        ("11.2", 11010, 11020, "/a/libcudart.so.11.0 is of CUDA 11.1, older than the package's 1"),
        ("11.2", 11020, 12010, "/a/libcudnn.so.8 is a cuDNN for CUDA 12.1, not for the package's"),
        ("10.2", 10020, 10010, "/a/libcudnn.so.8 is a cuDNN for CUDA 10.1, not for the package's"),
    ],
)  # fmt: skip
def test_cuda_that_does_not_fit_is_told(monkeypatch, package, runtime, cudnn, mistake) -> None:
    def get_version(out) -> int:
        # Without a GPU it fails, and leaves the number as it is.
        out._obj.value = runtime
        return 100 if runtime == 0 else 0

    library = {"cudaRuntimeGetVersion": get_version, "cudnnGetCudartVersion": lambda: cudnn}
    monkeypatch.setattr(ctypes, "CDLL", lambda path: SimpleNamespace(**library))
    monkeypatch.setitem(sys.modules, "mxnet", ModuleType("mxnet"))
    maps = "7f r 0 08:01 1 /a/libcudart.so.11.0\n7f r 0 08:01 1 /a/libcudnn.so.8\n7f r 0 0 0\n"
    monkeypatch.setattr(Path, "read_text", lambda path: maps)
    said = loaded("check_libraries").mistake(package)
    assert said == mistake or (mistake and said.startswith(mistake))


CITATION = "cff-version: 1.2.0\nversion: 0.2.0\ndate-released: 2026-11-24\n"
NOTES = "### Added\n\n- `train.py`: trains.\n# Not a comment of git's."
CHANGES = "# Changes\n\n## {} ({})\n\n{}\n\n## 0.1.0 (2026-01-01)\n\n- First.\n"


def test_a_release_is_a_tag_with_the_notes_of_its_version_alone(tmp_path: Path) -> None:
    def shell(script: str) -> str:
        return subprocess.check_output(["bash", "-ec", script], cwd=tmp_path, text=True)

    def release() -> tuple[int, str]:
        words = ["bash", ROOT / "setup-utils/release.sh"]
        ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    changes, text = tmp_path / "CHANGELOG.md", CHANGES.format("0.2.0", "2026-11-24", NOTES)
    (tmp_path / "CITATION.cff").write_text(CITATION)
    changes.write_text(text)
    script = "git init -q; git config user.name tests; git config user.email t@localhost"
    shell(f"{script}; git add .; git commit -qm release")
    for wrong, said in (
        (f"{text}- More.\n", "CHANGELOG.md differs from the last commit"),
        (CHANGES.format("0.2.0", "2026-11-25", NOTES), "and 2026-11-24 as date-released"),
    ):
        changes.write_text(wrong)
        status, line = release()
        assert status == 2 and said in line and line.startswith("error: ")
        assert shell("git tag") == ""
    changes.write_text(text)
    assert release() == (0, "tagged v0.2.0; to publish it: git push origin v0.2.0\n")
    told = shell("git for-each-ref refs/tags --format='%(objecttype)%0a%(contents)'")
    assert told.strip() == f"tag\n0.2.0 (2026-11-24)\n\n{NOTES}"
    status, line = release()
    assert status == 2 and line.startswith("error: there is a tag v0.2.0 already; give the")


def test_the_files_of_this_project_name_one_version() -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("CITATION.cff", "CHANGELOG.md")]
    (version,) = re.findall(r"^version: (\S+)$", texts[0], re.MULTILINE)
    assert re.search(r"^## (\S+) ", texts[1], re.MULTILINE)[1] == version
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
