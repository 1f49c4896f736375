"""No key and no value of a variable is an argument of a process while ranks run on other hosts.

In place of ssh, a script runs the command here, with the variables of a fresh login alone. It
records its words and its input.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.launch import clean_environment

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = f"{ROOT / 'setup-utils/launchers'}:{Path(sys.prefix) / 'bin'}"
# For documentation, and so of no host.
HOSTS = "198.51.100.1:1,203.0.113.1:1"
SSH = """\
#!/usr/bin/env bash
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


class Watch:
    """The arguments of all processes but this one within the context, as every user sees them."""

    def __enter__(self) -> Watch:
        self.seen: set[bytes] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(0.005):
            for name in {*filter(str.isdecimal, os.listdir("/proc"))} - {str(os.getpid())}:
                with suppress(OSError):
                    self.seen.add(Path("/proc", name, "cmdline").read_bytes())

    def having(self, *secrets: str) -> list[bytes]:
        """Return arguments that contain one of these texts, or an object of Horovod."""
        wanted = [secret.encode() for secret in secrets]
        return [one for one in self.seen if any(w in one for w in wanted) or objects(one)]


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """The folder of the script."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    return tmp_path


def run(record: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a launcher, with the secrets of a shell."""
    path = f"{record}:{PROGRAMS}:{os.environ['PATH']}"
    # The home has what Horovod remembers of hosts.
    own = {"PATH": path, "HOME": str(record), "RECORD": str(record), "HOST_TIMEOUT": "60"}
    own["HOROVOD_START_TIMEOUT"] = "100"
    return subprocess.run(
        command, env={**clean_environment(), **SECRETS, **own, **variables},
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.launcher
@pytest.mark.parametrize(
    "command", [("horovodrun", "--gloo"), ("horovodrun",), ("mpirun",)], ids=" ".join
)
def test_ranks_get_what_no_argument_has(record: Path, command: tuple[str, ...]) -> None:
    words = (*command, "-np", "2", "-H", HOSTS, "bash", "-c", SHOW)
    with Watch() as watch:
        said = run(record, *words, SEND_VARIABLES="WANDB_API_KEY")
    assert said.returncode == 0, said.stdout + said.stderr
    for rank in (0, 1):
        assert f"rank {rank} Mz9e4f6071 Wq2b8d3c55 none" in said.stdout
    assert any(b"remote-guard" in one for one in watch.seen)
    assert watch.having(*SECRETS.values()) == []
    recorded = (record / "words").read_bytes()
    assert not objects(recorded)
    assert not any(secret.encode() in recorded for secret in SECRETS.values())
    if "--gloo" in command:
        # The key of the search for interfaces comes on the input.
        inputs = [path.read_bytes() for path in record.glob("input.*")]
        settings = [found for text in inputs for found in objects(text)]
        assert len(settings) == 2 and all(b"start_timeout" in one for one in settings)
        assert any(b"_task_fn" in one for one in watch.seen), "it has been seen"


def test_a_search_that_fails_is_one_line_with_the_host(record: Path) -> None:
    fails = "[[ $command == true ]] || exit 7\nexec env"
    (record / "ssh").write_text(SSH.replace("exec env", fails))
    said = run(record, "horovodrun", "--gloo", "-np", "2", "-H", HOSTS, "true")
    assert said.returncode == 2 and said.stdout == ""
    line = r"error: the search for common interfaces has failed on host [0-9.]+: no reason "
    line += "given; choose an interface for all hosts, as in NIC=eth1"
    # Python adds lines about semaphores of its own.
    errors = [one for one in said.stderr.splitlines() if one.startswith("error: ")]
    assert errors and all(re.fullmatch(line, one) for one in errors)
    assert "Traceback" not in said.stderr
