"""How programs end: errors in one line, signals, and text without commands for a terminal."""

import io
import os
import re
import signal
import subprocess
import sys

import pytest

from runtime.errors import PrintableOutput, did_you_mean, one_line, printable
from tests.support.launch import ROOT, finish

RANK_NAMES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK")
# Prints how long the program waits instead of waiting.
PRINT_WAITING = "import time\ntime.sleep = lambda seconds: print('waits', seconds)\n"
GRACE = "waits 10.0\n"
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
STEP = """
import os, signal
from runtime.errors import run_stoppable, undisturbed

signal.signal(signal.SIGHUP, signal.SIG_IGN)

def main():
    with undisturbed():
        os.kill(os.getpid(), signal.SIG)
        print("the step is done")
    print("the program goes on")
    return 7

run_stoppable(main)
"""
REQUEST = """
import os, sys
from runtime import errors

now = 5.0
errors.time.monotonic = lambda: now
request = errors.StopRequest()
request.listen()
for argument in sys.argv[1:]:
    if argument == "wait":
        now += 1.1
    elif argument == "soon":
        now += 0.9
    else:
        os.kill(os.getpid(), int(argument))
        print(request.status, flush=True)
"""
INT, TERM, USR1, USR2 = map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))


def run_main(body: str, stdout=subprocess.PIPE, **variables: str):
    lines = "\n".join("    " + line for line in body.splitlines())
    code = f"from runtime import errors\ndef main():\n{lines}\nerrors.run_program(main)"
    environment = {k: v for k, v in os.environ.items() if k not in RANK_NAMES}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, **variables}, cwd=ROOT,
        stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_did_you_mean_names_the_closest_choice() -> None:
    losses = ["arcface", "cosface", "softmax"]
    assert did_you_mean("cosfase", losses) == " (did you mean 'cosface'?)"
    assert did_you_mean("xyz", losses) == ""
    # In other letters: "resnet20" has more letters of "resnet50" in the same case.
    models = ["resnet20", "ResNet50", "SENet18"]
    assert did_you_mean("resnet50", models) == " (did you mean 'ResNet50'?)"


@pytest.mark.parametrize(("body", "status", "said"), [
    ("raise errors.DataError('no such\\nfile')", 2, "error: no such file\n"),
    ("return 3", 3, ""),
])  # fmt: skip
def test_a_user_error_is_one_line_and_status_2(body: str, status: int, said: str) -> None:
    """And exit handlers run after success alone; a hanging thread does not delay the end."""
    hang = "import threading, time\nthreading.Thread(target=time.sleep, args=(300,)).start()\n"
    register = "import atexit\natexit.register(print, 'handler')\nprint('before')\n"
    printed = "before\n" if status == 2 else "before\nhandler\n"
    assert run_main((hang if status == 2 else "") + register + body) == (status, printed, said)


@pytest.mark.parametrize(("body", "status", "said"), [
    ("import numpy\nnumpy.zeros(1 << 60, 'u1')", 2, r"error: the memory does not suffice "
     r"\(Unable to allocate 1\.00 E.*; take less at a time, such as a smaller --batch-size\n"),
    ("raise ValueError('a bug')", 1, r"Traceback(.|\n)*ValueError: a bug\n"),
    ("open('/dev/full', 'w').write('x' * 100000)", 1,
     r"Traceback(.|\n)*OSError: \[Errno 28\] No space left(.|\n)*"),
])  # fmt: skip
def test_too_little_memory_is_one_line_and_others_keep_their_traceback(body, status, said) -> None:
    found, _, errors = run_main(body)
    assert found == status and re.fullmatch(said, errors)


def test_a_config_error_is_left_to_rank_0() -> None:
    """A collective that fails is the error of another rank; a broken file is not."""
    lost = "class HorovodInternalError(RuntimeError): pass\nraise HorovodInternalError()"
    wrong, broken = "raise errors.ConfigError('wrong')", "raise errors.DataError('broken')"
    first, second = {"HOROVOD_RANK": "0"}, {"OMPI_COMM_WORLD_RANK": "1"}
    assert run_main(PRINT_WAITING + wrong, **first) == (2, "", "error: wrong\n")
    assert run_main(PRINT_WAITING + wrong, **second) == (2, GRACE, "error: wrong\n")
    assert run_main(PRINT_WAITING + lost, **first)[1] == GRACE
    assert run_main(PRINT_WAITING + broken, **second) == (2, "", "error: broken\n")


def test_a_data_error_names_the_host_among_several() -> None:
    one = {"HOROVOD_SIZE": "4", "HOROVOD_LOCAL_SIZE": "4"}
    two = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    host = os.uname().nodename
    assert run_main("raise errors.DataError('broken')", **one)[2] == "error: broken\n"
    assert run_main("raise errors.DataError('broken')", **two)[2] == f"error: {host}: broken\n"
    assert run_main("raise errors.ConfigError('wrong')", **two)[2] == "error: wrong\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_output_is_one_line(unbuffered: str) -> None:
    """An error of the user comes first."""
    full = "error: the standard output cannot be written (No space left on device)\n"
    failing = "import sys\nsys.stdout.write('text')\nraise errors.DataError('broken')"
    first = full if unbuffered else "error: broken\n"
    for body, said in (("print('held back until the end')", full), (failing, first)):
        with open("/dev/full", "w") as output:
            found = run_main(body, stdout=output, PYTHONUNBUFFERED=unbuffered)
        assert found == (2, None, said)


def test_a_closed_pipe_ends_a_program_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert run_main("print('held back until the end')", stdout=writer) == (141, None, "")
    os.close(writer)


def test_a_name_does_not_reach_the_terminal_as_a_command() -> None:
    body = r"name = '/faces/\x1b]0;a\x07\x9b2J\u202e\xe9'" + "\n"
    body += "import sys\nprint(name)\nprint(name, file=sys.stderr)\n"
    shown = r"/faces/\x1b]0;a\x07\x9b2J\u202e" + "\xe9"
    found = run_main(body + "raise errors.DataError(name + '\\nerror: all is well')")
    assert found[1:] == (f"{shown}\n", f"{shown}\nerror: {shown} error: all is well\n")
    # What the encoding cannot hold is escaped, too.
    found = run_main(body + "raise ValueError(name)", PYTHONIOENCODING="ascii:strict")
    assert found[1] == r"/faces/\x1b]0;a\x07\x9b2J\u202e\xe9" + "\n"
    assert "ValueError: /faces/" in found[2] and "\x1b" not in found[2]


@pytest.mark.parametrize("read", [
    "bytes(mapped[50_000:])", "t = threading.Thread(target=array.sum)\nt.start()\nt.join()",
])  # fmt: skip
def test_a_mapped_file_that_is_cut_off_is_named_in_one_line(tmp_path, read: str) -> None:
    path = tmp_path / "a \x1bset.rec"
    path.write_bytes(bytes(100_000))
    no_file = "print(errors._cut_file())\n"
    body = CUT.replace("os.truncate", f"{no_file}os.truncate")
    status, output, said = run_main(f"{body}{read}\nprint('never')", CUT=str(path))
    assert (status, output) == (2, "read 0\na mapped file\n"), said
    shown = str(path).replace("\x1b", r"\x1b")
    assert said.startswith(f"error: {shown} was cut off while it was in use")
    assert said.count("\n") == 1 and "start the same command again" in said


def run(program: str, *arguments: object) -> tuple[int, str, str]:
    done = finish(sys.executable, "-c", program, *arguments, status=None)
    return done.returncode, done.stdout, done.stderr


def test_a_signal_waits_for_the_end_of_a_step() -> None:
    said = "stopped by SIGTERM: no unfinished file is left behind\n"
    assert run(STEP.replace("SIG)", "SIGTERM)")) == (143, "the step is done\n", said)
    status, output, errors = run(STEP.replace("SIG)", "SIGHUP)"))
    assert (status, errors) == (7, "") and output.endswith("the program goes on\n")


@pytest.mark.parametrize(("signals", "status", "printed"), [
    # mpirun forwards these instead, which may be repeated.
    ([USR2, "wait", USR2], 0, "143\n143\n"),
    # timeout sends a signal to the program, and to the program's process group.
    ([TERM, TERM, "soon", TERM], 0, "143\n143\n143\n"),
    ([INT, "wait", TERM, TERM], 130, "130\n"),
    ([USR1, "wait", TERM], 130, "130\n"),
])  # fmt: skip
def test_the_first_signal_is_a_request(signals, status, printed) -> None:
    assert run(REQUEST, *signals) == (status, printed, "")


@pytest.mark.parametrize(("name", "shown"), [
    ("\x9b31m\x7f\x85\r\x00", r"\x9b31m\x7f\x85\r\x00"),
    ("\x1f\x9f\u2029\u200e\u202a\udfff", r"\x1f\x9f\u2029\u200e\u202a\udfff"),
    (" ~\u2027\u202f\u2065\u206a\ud7fb\ue000", None),
    # Legal text: Latin, Han, Arabic, a family joined by ZWJ, no-break and ideographic spaces.
    ("Zoë 漢字 علي 👨\u200d👩\u200d👧 a\u00a0b\u3000c", None),
])  # fmt: skip
def test_control_characters_are_shown_and_letters_are_kept(name: str, shown) -> None:
    assert printable(name) == one_line(name) == (shown or name)


def test_lines_are_kept_in_a_text_and_the_carriage_return_of_a_progress_bar() -> None:
    assert printable("a\tb\nc\x1b") == "a\tb\nc\\x1b"
    assert one_line("a\tb\nc") == r"a\tb\nc"
    raw = io.BytesIO()
    output = PrintableOutput(raw, encoding="utf-8", newline="\n", write_through=True)
    print("set \x1b[2Jé\rerror: forged", file=output)
    assert output.write("\r 50%|█\x1b") == 8
    output.writelines(["\x9b\n"])
    assert raw.getvalue().decode() == "set \\x1b[2Jé\\rerror: forged\n\r 50%|█\\x1b\\x9b\n"
