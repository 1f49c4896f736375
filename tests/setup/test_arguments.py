"""Jobs of ranks on hosts that a stub of ssh reaches, and of tasks of Slurm.

The stub runs the command here with the variables of a fresh login, and records words.
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
from typing import Any

import pytest

from tests.support.launch import ROOT, finish, write_program

pytestmark = [pytest.mark.thorough, pytest.mark.launcher]

PROGRAMS = f"{ROOT / 'setup-utils/launchers'}:{Path(sys.prefix) / 'bin'}"
# For documentation, and so of no host.
HOSTS = "198.51.100.1:1,203.0.113.1:1"
SSH = """\
printf '%s\\n' "$@" >>"$RECORD/words"
while getopts xp:i:o: _; do :; done
command=${*:OPTIND+1}
exec env -i HOME="$HOME" PATH=/usr/local/bin:/usr/bin:/bin bash -c "$command"
"""
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "Hx7c0a1f9e", "WANDB_API_KEY": "Wq2b8d3c55", "MXNET_KEPT": "Mz9e4f6071"
}  # fmt: skip
SHOW = 'sleep 1; echo "rank $HOROVOD_RANK$OMPI_COMM_WORLD_RANK '
SHOW += '$MXNET_KEPT $WANDB_API_KEY ${AWS_SECRET_ACCESS_KEY:-none}"'
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{80,}={0,2}")


def objects(text: bytes) -> list[bytes]:
    words = (word.rstrip(b"=") for word in _BASE64.findall(text))
    decoded = (base64.b64decode(word[: len(word) - (len(word) % 4 == 1)] + b"==") for word in words)
    return [one for one in decoded if b"horovod" in one]


@contextmanager
def watched() -> Iterator[set[bytes]]:
    """Yield the arguments of all other processes, as every user sees them."""
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


@pytest.mark.parametrize("command", ["horovodrun --gloo", "horovodrun", "mpirun"])
def test_ranks_get_what_no_argument_has(tmp_path: Path, command: str) -> None:
    write_program(tmp_path / "ssh", SSH)
    # The home has what Horovod remembers of hosts.
    variables: dict[str, Any] = {"HOME": str(tmp_path), "RECORD": str(tmp_path), **SECRETS}
    variables |= {"PATH": f"{tmp_path}:{PROGRAMS}:{os.environ['PATH']}", "HOST_TIMEOUT": "60"}
    variables |= {"SEND_VARIABLES": "WANDB_API_KEY", "HOROVOD_START_TIMEOUT": "100"}
    words = (*command.split(), "-np", "2", "-H", HOSTS, "bash", "-c", SHOW)
    with watched() as seen:
        said = finish(*words, seconds=120, **variables)
    for rank in (0, 1):
        assert f"rank {rank} Mz9e4f6071 Wq2b8d3c55 none" in said.stdout
    assert any(b"remote-guard" in one for one in seen)
    for text in (*seen, (tmp_path / "words").read_bytes()):
        assert not objects(text) and not any(one.encode() in text for one in SECRETS.values())


# In place of srun with PMIx: tasks of Open MPI's own PMIx server, without what it tells its ranks,
# with what Slurm tells its tasks. Open MPI takes them for those of srun by job, step and nodes.
SRUN = """\
rank=$OMPI_COMM_WORLD_RANK
for name in $(compgen -e | grep -E '^(OMPI|ORTE|OPAL_MCA|HOROVOD)_'); do unset "$name"; done
export SLURM_JOB_ID=7 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_NODEID=0
export SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_NTASKS=2
export SLURM_NODELIST=$(hostname) SLURM_STEP_ID=0 SLURM_JOBID=7
exec bash "$@"
"""


def test_tasks_with_pmix_train_together(tmp_path: Path) -> None:
    words = "--debug --rec . --num-classes 50 --num-images 50 --network tiny --batch-size 4"
    options = [*words.split(), "--max-update", 2, "--models-root"]
    mpirun, srun = Path(sys.executable).with_name("mpirun"), write_program(tmp_path / "srun", SRUN)
    finish(mpirun, "-np", 2, srun, "setup-utils/slurm.sh", *options, tmp_path / "models")
    logs = sorted(path.name for path in (tmp_path / "models/logs").iterdir())
    assert logs == ["rank-0000.log", "rank-0001.log"]
    assert (tmp_path / "models/checkpoints/update-00000002/rank-0001.bin").exists()
