from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.errors import ConfigError, DataError, UserError, did_you_mean

ROOT = Path(__file__).parents[2]
RANK_NAMES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK")


def run_main(body: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program whose main function has the given body."""
    lines = "\n".join("    " + line for line in body.splitlines())
    code = f"from runtime import errors\ndef main():\n{lines}\nerrors.run_program(main)"
    environment = {k: v for k, v in os.environ.items() if k not in RANK_NAMES}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_did_you_mean_names_the_closest_choice() -> None:
    losses = ["arcface", "cosface", "softmax"]
    assert did_you_mean("cosfase", losses) == " (did you mean 'cosface'?)"
    assert did_you_mean("xyz", losses) == ""


def test_user_errors_are_one_family() -> None:
    assert issubclass(ConfigError, UserError)
    assert issubclass(DataError, UserError)
    assert not issubclass(ConfigError, DataError)


@pytest.mark.parametrize("kind", ["ConfigError", "DataError"])
def test_a_user_error_is_one_line_and_status_2(kind: str) -> None:
    result = run_main(f"raise errors.{kind}('no such\\nfile')")
    assert result.returncode == 2
    assert result.stderr == "error: no such file\n"


def test_other_exceptions_keep_their_traceback() -> None:
    result = run_main("raise ValueError('a bug')")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("ValueError: a bug\n")


@pytest.mark.parametrize(("returned", "status"), [("None", 0), ("0", 0), ("3", 3)])
def test_the_status_is_what_main_returns(returned: str, status: int) -> None:
    assert run_main(f"return {returned}").returncode == status


def test_exit_handlers_run_after_success_alone() -> None:
    register = "import atexit\natexit.register(print, 'handler')\nprint('before')\n"
    assert run_main(register + "return 0").stdout == "before\nhandler\n"
    for kind in ("errors.ConfigError", "errors.DataError", "ValueError"):
        assert run_main(register + f"raise {kind}('wrong')").stdout == "before\n"


def test_a_hanging_thread_does_not_hold_up_the_end() -> None:
    # Longer than ``run_main`` waits.
    result = run_main(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(300,)).start()\n"
        "raise errors.DataError('broken')"
    )
    assert result.returncode == 2


# Tells how long the program waits, in place of waiting.
TELL_WAITING = "import time\ntime.sleep = lambda seconds: print('waits', seconds)\n"
GRACE = "waits 10.0\n"


@pytest.mark.parametrize("name", RANK_NAMES)
def test_a_config_error_is_left_to_rank_0(name: str) -> None:
    result = run_main(TELL_WAITING + "raise errors.ConfigError('wrong')", **{name: "0"})
    assert (result.returncode, result.stdout, result.stderr) == (2, "", "error: wrong\n")
    result = run_main(TELL_WAITING + "raise errors.ConfigError('here alone')", **{name: "1"})
    assert (result.returncode, result.stdout, result.stderr) == (2, GRACE, "error: here alone\n")


def test_a_data_error_is_printed_by_every_rank_at_once() -> None:
    result = run_main(TELL_WAITING + "raise errors.DataError('broken')", HOROVOD_RANK="1")
    assert (result.stdout, result.stderr) == ("", "error: broken\n")
