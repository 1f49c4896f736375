"""The report of ``python -m runtime.gpu_check``, with second processors in the place of GPUs."""

from __future__ import annotations

import getpass
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from partial_fc.options import LOSSES
from runtime import gpu_check
from runtime.errors import ConfigError
from runtime.gpu_check import FAIL, NOT_RUN, PASS, NotRun, Part, Wrong, anonymous, checked
from tests.support.launch import clean_environment

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("runtime", "backbones", "data", "evaluation", "parallel", "partial_fc", "training")
ONE_PART = """
from runtime import gpu_check
raise SystemExit(gpu_check.check(["cpu(1)"], parts=[gpu_check.Part("updates")]))
"""


def run(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=clean_environment(), text=True,
        capture_output=True, timeout=600, check=False,
    )  # fmt: skip


def by_status(report: str) -> dict[str, dict[str, str]]:
    """The details of each check, by its status and name."""
    lines = re.findall(rf"^({PASS}|{FAIL}|{NOT_RUN}) +([^:]*): (.*)$", report, re.MULTILINE)
    found: dict[str, dict[str, str]] = {PASS: {}, FAIL: {}, NOT_RUN: {}}
    for status, what, detail in lines:
        assert not any(what in known for known in found.values()), f"{what} comes twice"
        found[status][what] = detail
    return found


def with_one_subject(folder: Path) -> Path:
    """Copy the product, with updates of a single loss; returns the copy."""
    for room in PRODUCT:
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "training" / "device_check" / "updates.py").open("a") as module:
        module.write("\n\nsubjects = lambda: {'cosface': Subject()}\n")
    return folder


@pytest.mark.launcher
@pytest.mark.device
def test_the_whole_report() -> None:
    check_report(ROOT, [*LOSSES, "filter", "adam", "adamw", "r18"])


@pytest.mark.thorough
@pytest.mark.launcher
def test_a_report_with_one_loss(tmp_path: Path) -> None:
    check_report(with_one_subject(tmp_path), ["cosface"])


def check_report(folder: Path, subjects: Sequence[str]) -> None:
    ended = run("-m", "runtime.gpu_check", "--devices", "cpu(1)", "cpu(2)", folder=folder)
    found = by_status(ended.stdout)
    assert not found[FAIL] and ended.returncode == 0, ended.stdout + ended.stderr
    for name in subjects:
        assert "weights" in found[PASS][f"update {name} float32"]
        assert "float16 products" in found[NOT_RUN][f"update {name} float16"]
    assert "toolkit" in {**found[PASS], **found[NOT_RUN]}
    assert "1.9.1" in found[PASS]["MXNet"] and "MXNet MPI Gloo" in found[PASS]["Horovod"]
    for device in ("cpu(1)", "cpu(2)"):
        assert found[PASS].keys() >= {f"{device} copies", f"{device} convolution float32"}
    assert {"waits float32", "time float32"} <= found[PASS].keys()
    assert found[NOT_RUN]["updates TF32"] == "cpu(1) is no GPU"
    collectives = ("allreduce", "allgather", "broadcast")
    names = [f"{name} {dtype}" for name in collectives for dtype in ("float32", "float16")]
    for name in (*names, "update cosface float32"):
        assert f"two ranks {name}" in found[PASS]
    counts = f"{len(found[PASS])} pass, 0 FAIL, {len(found[NOT_RUN])} not run"
    assert ended.stdout.splitlines()[-1] == counts
    words = set(re.findall(r"[\w.-]+", ended.stdout))
    assert not words & {socket.gethostname(), getpass.getuser()}
    for path in (ROOT, folder, sys.prefix):
        assert str(path) not in ended.stdout


def test_a_broken_head_is_reported(tmp_path: Path) -> None:
    """In a copy of the product whose device does not project its gradients."""
    copy = with_one_subject(tmp_path)
    with (copy / "partial_fc" / "rows" / "device.py").open("a", encoding="utf-8") as module:
        module.write("\n\nDeviceRows.project = lambda self, gradient, units, inverse: gradient\n")
    ended = run("-c", ONE_PART, folder=copy)
    found = by_status(ended.stdout)
    assert re.search("allowed: .*weights 0.1", found[FAIL]["update cosface float32"]), ended
    assert ended.returncode == 1 and ended.stdout.endswith("0 pass, 1 FAIL, 1 not run\n")


def test_a_build_for_processors_is_refused_in_one_line() -> None:
    ended = run("-m", "runtime.gpu_check")
    assert ended.returncode == 2 and ended.stdout == ""
    assert re.fullmatch("error: the MXNet package here is mxnet, .*install.*\n", ended.stderr)
    ended = run("-m", "runtime.gpu_check", "--quick")
    assert ended.returncode == 2 and "unrecognized arguments: --quick" in ended.stderr


def parts_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **bodies: str) -> list[Part]:
    """Parts that run other programs than the checks."""
    for name, body in bodies.items():
        (tmp_path / f"{name}.py").write_text(body, encoding="utf-8")
    (tmp_path / "parts.py").write_text(
        "import runpy, sys\nrunpy.run_path(f'{sys.path[0]}/{sys.argv[1]}.py')\n", encoding="utf-8"
    )
    monkeypatch.setattr(gpu_check, "_MODULE", "parts")
    monkeypatch.setattr(gpu_check, "_ROOT", tmp_path)
    return [Part(name) for name in bodies]


def test_a_crash_costs_one_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mismatch = "cuDNN lib mismatch: linked-against version 8100 != compiled-against version 8005"
    parts = parts_that(
        tmp_path, monkeypatch,
        crash="print('pass     first: fine', flush=True)\nimport os\nos.kill(os.getpid(), 11)\n",
        error="raise SystemExit('MXNetError: no /opt/a/b.so\\n  [bt] (3) lib.so')\n",
        hangs="print('noise', flush=True)\nimport time\ntime.sleep(60)\n",
        ranks="print('[1,0]<stdout>:pass     last: fine[1,0]<stdout>:')\n"
        f"import sys\nfor _ in range(2): print('{mismatch}.  Set', file=sys.stderr)\n",
    )  # fmt: skip
    lines: list[str] = []
    assert gpu_check.check(["cpu(1)"], parts, seconds=3, report=lines.append) == 3
    assert lines == [
        "pass     first: fine",
        "FAIL     crash: ended by signal 11: it wrote no error",
        "FAIL     error: ended with status 1: MXNetError: no b.so",
        "FAIL     hangs: not done after 3 seconds: it wrote no error",
        "pass     last: fine",
        f"note     MXNet: {mismatch}",
        "2 pass, 3 FAIL, 0 not run",
    ]


def test_variables_differ_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os\nprint('pass     value:', os.environ.get('NVIDIA_TF32_OVERRIDE'))\n"
    parts_that(tmp_path, monkeypatch, **{part.name: program for part in gpu_check.PARTS})
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    lines: list[str] = []
    gpu_check.check(["cpu(1)"], report=lines.append)
    values = dict(zip([part.name for part in gpu_check.PARTS], [line[-4:] for line in lines]))
    assert values["updates"] == values["ranks"] == "e: 0"
    assert values["tf32"] == "None" and values["speed"] == "e: 1"


def test_only_what_is_installed_can_end_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = "import sys\nprint('error: no GPU', file=sys.stderr)\nraise SystemExit(2)\n"
    parts = parts_that(tmp_path, monkeypatch, builds=refusal, speed=refusal)
    lines: list[str] = []
    assert gpu_check.check((), parts[1:], report=lines.append) == 1
    assert lines[0] == "FAIL     speed: ended with status 2: error: no GPU"
    with pytest.raises(ConfigError, match="^no GPU$"):
        gpu_check.check((), parts, report=lines.append)


def test_lines_say_why() -> None:
    def fail(error: Exception) -> str:
        def check() -> str:
            raise error

        return checked("a b", check)

    assert checked("a b", lambda: "x\n  y") == "pass     a b: x y"
    assert fail(NotRun("no GPU")) == "not run  a b: no GPU"
    assert fail(Wrong("off by 3")) == "FAIL     a b: off by 3"
    assert fail(ValueError()) == "FAIL     a b: ValueError:"
    last = "MXNetError: Check failed: e == 0: no kernel image"
    stack = f'Traceback:\n  File "../src/x.cc", line 3\n{last}'
    assert fail(RuntimeError(stack)) == f"FAIL     a b: RuntimeError: {last}"


def test_lines_name_no_host_user_or_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node-17.example.org")
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    monkeypatch.setenv("HOME", "/home/alice")
    text = "alice: in /home/alice/a/x.so: /data/alice/lib/libcudnn.so.8 at node-17, 3/4 images/s"
    assert anonymous(text) == "USER: in x.so: libcudnn.so.8 at HOST, 3/4 images/s"
    assert anonymous("node-17.example.org: alice") == "HOST: USER"
    monkeypatch.setattr(sys, "prefix", "/opt/a b/env")
    assert anonymous("File '/opt/a b/env/lib/python3/x.py'") == "File 'x.py'"
