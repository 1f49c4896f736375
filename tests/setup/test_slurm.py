"""One script for allocations of Slurm, with stubs of its programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.launch import clean_environment

if TYPE_CHECKING:
    from tests.setup.conftest import Sandbox

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "setup-utils/slurm.sh"
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_TASKS_PER_NODE": "8(x2),4"}
STEP = {"SLURM_STEP_NUM_TASKS": "20", "SLURM_STEP_TASKS_PER_NODE": "8(x2),4"}
TASK = {**JOB, **STEP, "SLURM_PROCID": "17", "SLURM_LOCALID": "1", "SLURM_NODEID": "2"}
SCONTROL = """\
#!/usr/bin/env bash
[[ $* == "show hostnames node[1-3]" ]] && printf '%s\\n' node1 node2 node3
"""
# What config.sh hands to train.py.
PYTHON = """\
#!/usr/bin/env bash
[[ $* == "-m runtime.environment" ]] || { echo "$@"; env | grep ^OMPI_; }
"""


def test_in_an_allocation_mpirun_starts_a_rank_for_each_task(sandbox: Sandbox) -> None:
    sandbox.stub("scontrol", SCONTROL)
    for extra in ({}, {"NP": "2", "HOSTFILE": "none"}, {"SLURM_STEP_NUM_TASKS": "1"}):
        result = sandbox.run("bash", SCRIPT, "--max-update", "20", **JOB, **extra)
        assert result.returncode == 0, result.stderr
        assert " -np 20 -H node1:8,node2:8,node3:4 " in sandbox.calls
        assert sandbox.calls.endswith(f"bash {sandbox.folder}/config.sh --max-update 20\n")


def test_a_task_of_srun_is_a_rank(sandbox: Sandbox) -> None:
    sandbox.stub("python", PYTHON)
    result = sandbox.run("bash", SCRIPT, "--max-update", "20", **TASK, PMIX_RANK="17")
    assert result.returncode == 0, result.stderr
    command, *variables = result.stdout.splitlines()
    assert command.endswith("/train.py --dataset synthetic --max-update 20")
    assert sorted(variables) == [
        "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=4", "OMPI_COMM_WORLD_RANK=17",
        "OMPI_COMM_WORLD_SIZE=20", "OMPI_MCA_btl=^openib", "OMPI_MCA_pml=ob1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "SLURM_JOB_ID is not set: start it in an allocation"),
        ({**JOB, "SLURM_HET_SIZE": "2"}, "SLURM_HET_SIZE=2: each part of a heterogeneous job has"),
        (TASK, "srun has started 20 tasks without PMIx"),
        ({**JOB, "SLURM_TASKS_PER_NODE": "8(x)"}, r"'8(x)' are no tasks per node of Slurm"),
        ({**JOB, "SLURM_JOB_NODELIST": "other"}, "scontrol does not know the hosts"),
        ({**JOB, "SLURM_TASKS_PER_NODE": "8(x2)"}, "SLURM_TASKS_PER_NODE='8(x2)' has not a"),
        ({"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": "1"}, "SLURM_JOB_NODELIST is not set"),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "a"}, "SLURM_TASKS_PER_NODE is not set"),
        ({**JOB, "SLURM_STEP_NUM_TASKS": "a"}, "SLURM_STEP_NUM_TASKS='a' is not a number"),
        ({**JOB, "SLURM_STEP_NUM_TASKS": "2", "PMIX_RANK": "0"}, "SLURM_STEP_TASKS_PER_NODE is"),
    ],
)
def test_mistakes_are_one_line(sandbox: Sandbox, variables: dict[str, str], words: str) -> None:
    sandbox.stub("scontrol", SCONTROL)
    result = sandbox.run("bash", SCRIPT, **variables)
    assert result.returncode == 2 and sandbox.calls == ""
    assert result.stderr.startswith(f"error: {words}") and len(result.stderr.splitlines()) == 1


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


@pytest.mark.launcher
def test_tasks_with_pmix_train_together(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    options = "--debug --network tiny --batch-size 4 --max-update 2 --models-root".split()
    mpirun = Path(sys.executable).with_name("mpirun")
    result = subprocess.run(
        [mpirun, "-np", "2", "bash", srun, SCRIPT, *options, tmp_path / "models"],
        cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    logs = sorted(path.name for path in (tmp_path / "models/logs").iterdir())
    assert logs == ["rank-0000.log", "rank-0001.log"]
    assert (tmp_path / "models/checkpoints/update-00000002/rank-0001.bin").exists()
