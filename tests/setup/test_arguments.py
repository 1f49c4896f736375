"""No key and no value of a variable is an argument of a process while ranks run on other hosts.

In place of ssh, a script runs the command here, with the variables of a fresh login alone. It
records its words and its input.
"""

from __future__ import annotations

import base64
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.support.launch import ROOT, finish, write_program

pytestmark = pytest.mark.thorough

PROGRAMS = f"{ROOT / 'setup-utils/launchers'}:{Path(sys.prefix) / 'bin'}"
# For documentation, and so of no host.
HOSTS = "198.51.100.1:1,203.0.113.1:1"
SSH = """\
printf '%s\\n' "$@" >>"$RECORD/words"
while getopts xp:i:o: _; do :; done
command=${*:OPTIND+1}
exec env -i HOME="$HOME" PATH=/usr/local/bin:/usr/bin:/bin bash -c "$command" \
    < <(exec tee "$RECORD/input.$$")
"""
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "Hx7c0a1f9e", "WANDB_API_KEY": "Wq2b8d3c55", "MXNET_KEPT": "Mz9e4f6071"
}  # fmt: skip
# Ranks see what they get, and are there for a while.
SHOW = 'sleep 1; echo "rank $HOROVOD_RANK$OMPI_COMM_WORLD_RANK '
SHOW += '$MXNET_KEPT $WANDB_API_KEY ${AWS_SECRET_ACCESS_KEY:-none}"'
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{80,}={0,2}")


def objects(text: bytes) -> list[bytes]:
    """Return the objects of Horovod that a text has in base64, each as it is pickled."""
    words = (word.rstrip(b"=") for word in _BASE64.findall(text))
    decoded = (base64.b64decode(word[: len(word) - (len(word) % 4 == 1)] + b"==") for word in words)
    return [one for one in decoded if b"horovod" in one]


@contextmanager
def watched() -> Iterator[set[bytes]]:
    """Yield the arguments of all other processes within the context, as every user sees them."""
    seen: set[bytes] = set()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.005):
            for name in {*filter(str.isdecimal, os.listdir("/proc"))} - {str(os.getpid())}:
                with suppress(OSError):
                    seen.add(Path("/proc", name, "cmdline").read_bytes())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def run(
    record: Path, *command: str, status: int, ssh: str = SSH, **variables: str
) -> CompletedProcess[str]:
    """Run a launcher, with the secrets of a shell."""
    write_program(record / "ssh", ssh)
    path = f"{record}:{PROGRAMS}:{os.environ['PATH']}"
    # The home has what Horovod remembers of hosts.
    own: dict[str, Any] = {"PATH": path, "HOME": str(record), "RECORD": str(record)}
    own |= {"HOST_TIMEOUT": "60", "HOROVOD_START_TIMEOUT": "100", **SECRETS, **variables}
    return finish(*command, status=status, seconds=120, **own)


@pytest.mark.launcher
@pytest.mark.parametrize(
    "command", [("horovodrun", "--gloo"), ("horovodrun",), ("mpirun",)], ids=" ".join
)
def test_ranks_get_what_no_argument_has(tmp_path: Path, command: tuple[str, ...]) -> None:
    words = (*command, "-np", "2", "-H", HOSTS, "bash", "-c", SHOW)
    with watched() as seen:
        said = run(tmp_path, *words, status=0, SEND_VARIABLES="WANDB_API_KEY")
    for rank in (0, 1):
        assert f"rank {rank} Mz9e4f6071 Wq2b8d3c55 none" in said.stdout
    assert any(b"remote-guard" in one for one in seen)
    for text in (*seen, (tmp_path / "words").read_bytes()):
        assert not objects(text) and not any(one.encode() in text for one in SECRETS.values())
    if "--gloo" in command:
        # The key of the search for interfaces comes on the input.
        inputs = [path.read_bytes() for path in tmp_path.glob("input.*")]
        settings = [found for text in inputs for found in objects(text)]
        assert len(settings) == 2 and all(b"start_timeout" in one for one in settings)
        assert any(b"_task_fn" in one for one in seen)


def test_a_search_that_fails_is_one_line_with_the_host(tmp_path: Path) -> None:
    fails = SSH.replace("exec env", "[[ $command == true ]] || exit 7\nexec env")
    words = ("horovodrun", "--gloo", "-np", "2", "-H", HOSTS, "true")
    said = run(tmp_path, *words, status=2, ssh=fails)
    assert said.stdout == ""
    line = r"error: the search for common interfaces has failed on host [0-9.]+: no reason "
    line += "given; choose an interface for all hosts, as in NIC=eth1"
    # Python adds lines about semaphores of its own.
    errors = [one for one in said.stderr.splitlines() if one.startswith("error: ")]
    assert errors and all(re.fullmatch(line, one) for one in errors)
    assert "Traceback" not in said.stderr
