from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import did_you_mean

ROOT = Path(__file__).parents[2]
RANK_NAMES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK")


def run_main(
    body: str, stdout: Any = subprocess.PIPE, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program whose main function has the given body."""
    lines = "\n".join("    " + line for line in body.splitlines())
    code = f"from runtime import errors\ndef main():\n{lines}\nerrors.run_program(main)"
    environment = {k: v for k, v in os.environ.items() if k not in RANK_NAMES}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, **variables},
        cwd=ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


def test_did_you_mean_names_the_closest_choice() -> None:
    losses = ["arcface", "cosface", "softmax"]
    assert did_you_mean("cosfase", losses) == " (did you mean 'cosface'?)"
    assert did_you_mean("xyz", losses) == ""
    # In other letters: "resnet20" has more letters of "resnet50" in the same case.
    models = ["resnet20", "ResNet50", "SENet18"]
    assert did_you_mean("resnet50", models) == " (did you mean 'ResNet50'?)"
    assert did_you_mean("SENET18", models) == " (did you mean 'SENet18'?)"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("raise errors.ConfigError('no such\\nfile')", 2, "error: no such file\n"),
        ("raise errors.DataError('no such\\nfile')", 2, "error: no such file\n"),
        ("return None", 0, ""),
        ("return 3", 3, ""),
    ],
)
def test_a_user_error_is_one_line_and_status_2(body: str, status: int, said: str) -> None:
    """And exit handlers run after success alone; a hanging thread does not delay the end."""
    hang = "import threading, time\nthreading.Thread(target=time.sleep, args=(300,)).start()\n"
    register = "import atexit\natexit.register(print, 'handler')\nprint('before')\n"
    result = run_main((hang if status == 2 else "") + register + body)
    assert (result.returncode, result.stderr) == (status, said)
    assert result.stdout == ("before\n" if status == 2 else "before\nhandler\n")


def test_too_little_memory_is_one_line() -> None:
    result = run_main("import numpy\nnumpy.zeros(1 << 60, 'u1')")
    assert result.returncode == 2
    assert result.stderr.startswith("error: the memory does not suffice (Unable to allocate 1.00 E")
    assert result.stderr.endswith("; take less at a time, such as a smaller --batch-size\n")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("raise ValueError('a bug')", "ValueError: a bug\n"),
        ("open('/dev/full', 'w').write('x' * 100000)", "OSError: [Errno 28] No space left"),
    ],
)
def test_other_exceptions_keep_their_traceback(body: str, error: str) -> None:
    result = run_main(body)
    assert result.returncode == 1
    assert "Traceback" in result.stderr and error in result.stderr


# Prints how long the program waits instead of waiting.
PRINT_WAITING = "import time\ntime.sleep = lambda seconds: print('waits', seconds)\n"
GRACE = "waits 10.0\n"


@pytest.mark.parametrize("name", RANK_NAMES)
def test_a_config_error_is_left_to_rank_0(name: str) -> None:
    result = run_main(PRINT_WAITING + "raise errors.ConfigError('wrong')", **{name: "0"})
    assert (result.returncode, result.stdout, result.stderr) == (2, "", "error: wrong\n")
    result = run_main(PRINT_WAITING + "raise errors.ConfigError('here alone')", **{name: "1"})
    assert (result.returncode, result.stdout, result.stderr) == (2, GRACE, "error: here alone\n")
    # A collective that fails is that of another rank; a broken file is not.
    lost = "class HorovodInternalError(RuntimeError): pass\nraise HorovodInternalError()"
    assert run_main(PRINT_WAITING + lost, **{name: "0"}).stdout == GRACE
    result = run_main(PRINT_WAITING + "raise errors.DataError('broken')", **{name: "1"})
    assert (result.stdout, result.stderr) == ("", "error: broken\n")


@pytest.mark.parametrize(
    ("prefix", "local", "host"),
    [("HOROVOD_", "4", ""), ("OMPI_COMM_WORLD_", "2", f"{os.uname().nodename}: ")],
)
def test_a_data_error_names_the_host_among_several(prefix: str, local: str, host: str) -> None:
    sizes = {f"{prefix}SIZE": "4", f"{prefix}LOCAL_SIZE": local}
    assert run_main("raise errors.DataError('broken')", **sizes).stderr == f"error: {host}broken\n"
    raise_config_error = PRINT_WAITING + "raise errors.ConfigError('wrong')"
    assert run_main(raise_config_error, **sizes).stderr == "error: wrong\n"
    alone = run_main(raise_config_error, **sizes, HOROVOD_RANK="1")
    assert alone.stderr == f"error: {host}wrong\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_output_is_one_line(unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        for body in ("print('x' * 100000)", "print('held back until the end')"):
            result = run_main(body, stdout=full, PYTHONUNBUFFERED=unbuffered)
            assert result.returncode == 2
            assert result.stderr == (
                "error: the standard output cannot be written (No space left on device)\n"
            )


@pytest.mark.parametrize("body", ["print('x' * 1000000)", "print('held back until the end')"])
def test_a_closed_pipe_ends_a_program_quietly(body: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = run_main(body, stdout=writer)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


def test_an_error_of_the_user_comes_first() -> None:
    with open("/dev/full", "w") as full:
        body = "print('text')\nraise errors.DataError('broken')"
        result = run_main(body, stdout=full, PYTHONUNBUFFERED="")
    assert (result.returncode, result.stderr) == (2, "error: broken\n")


def test_what_an_encoding_cannot_hold_is_escaped() -> None:
    body = r"print('/faces/\udcff/\xe4')" + "\n"
    body += r"raise errors.DataError('/faces/\udcff')"
    result = run_main(body, PYTHONIOENCODING="ascii:strict")
    assert result.stdout == "/faces/\\udcff/\\xe4\n"
    assert (result.returncode, result.stderr) == (2, "error: /faces/\\udcff\n")


def test_a_name_does_not_reach_the_terminal_as_a_command() -> None:
    body = r"name = '/faces/\x1b]0;a\x07\x9b2J\u202e\xe9'" + "\n"
    body += "import sys, warnings\nprint(name)\nprint(name, file=sys.stderr)\n"
    result = run_main(body + "raise errors.DataError(name + '\\nerror: all is well')")
    shown = r"/faces/\x1b]0;a\x07\x9b2J\u202e" + "\xe9"
    assert result.stdout == f"{shown}\n"
    assert result.stderr == f"{shown}\nerror: {shown} error: all is well\n"
    # Neither does what Python itself prints.
    traceback = run_main(body + "raise ValueError(name)").stderr
    assert f"ValueError: {shown}\n" in traceback and "\x1b" not in traceback


def test_closed_outputs_are_no_error() -> None:
    line = f"exec {shlex.quote(sys.executable)} -c 'from runtime import errors; "
    line += "errors.run_program(lambda: print(1) or 3)' >&- 2>&-"
    assert subprocess.run(["bash", "-c", line], cwd=ROOT, timeout=60, check=False).returncode == 3


CUT = """
import mmap, os, sys, threading
import numpy as np
path = os.environ["CUT"]
with open(path, "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
array = np.frombuffer(mapped, np.uint8)
print("read", array[-1], flush=True)
os.truncate(path, 10)
"""


@pytest.mark.parametrize(
    "read",
    ["bytes(mapped[50_000:])", "t = threading.Thread(target=array.sum)\nt.start()\nt.join()"],
)
def test_a_mapped_file_that_is_cut_off_is_named_in_one_line(tmp_path: Path, read: str) -> None:
    path = tmp_path / "a \x1bset.rec"
    path.write_bytes(bytes(100_000))
    result = run_main(f"{CUT}{read}\nprint('never')", CUT=str(path))
    assert (result.returncode, result.stdout) == (2, "read 0\n"), result.stderr
    shown = str(path).replace("\x1b", r"\x1b")
    assert result.stderr.startswith(f"error: {shown} was cut off while it was in use")
    assert result.stderr.count("\n") == 1 and "start the same command again" in result.stderr
