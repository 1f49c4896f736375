"""How config.sh calls train.py, the script for Slurm, and where scripts look for files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.setup.conftest import Sandbox
from tests.support.launch import finish, write_program
from training.config import faces

pytestmark = pytest.mark.thorough

SLURM_SCRIPT = "setup-utils/slurm.sh"
# Tells which variables a program gets.
SETTINGS = """\
echo "python $*" >>"$CALLS"
[[ $* != "-m runtime.environment" ]] || echo "export OMP_NUM_THREADS=7"
[[ $1 != */train.py ]] || { echo "OMP_NUM_THREADS=$OMP_NUM_THREADS"; env | grep ^OMPI_ || :; }
"""


def config_call(sandbox: Sandbox, typed: str = "", **variables: Any) -> str:
    """Run config.sh and return how it calls train.py."""
    sandbox.stub("python", SETTINGS)
    result = sandbox.run("config.sh", *typed.split(), **variables)
    assert result.stdout == "OMP_NUM_THREADS=7\n"
    settings, train = sandbox.calls.splitlines()
    assert settings == "python -m runtime.environment"
    return train.replace(f"python {sandbox.folder}/train.py ", "")


def test_choices_come_from_the_environment(sandbox: Sandbox) -> None:
    # Options win over variables: they come last.
    assert config_call(sandbox, "--lr 0.5", LR="0.1") == "--dataset synthetic --lr 0.1 --lr 0.5"
    choices = {"DATASET": "emore", "NETWORK": "r50", "BATCH_SIZE": "32", "MODELS_ROOT": "m"}
    said = config_call(sandbox, **choices)
    assert said == "--dataset emore --network r50 --batch-size 32 --models-root m"
    said = config_call(sandbox, "--rec faces", DATASET="glint360k_8GPU")
    assert said == "--dataset glint360k_8GPU --rec faces"


def test_data_of_the_user_replace_the_synthetic_set(sandbox: Sandbox, monkeypatch) -> None:
    """As ``train.py`` understands it: nothing is left of the data and the recipe of synthetic."""
    (sandbox.folder / "faces").mkdir()
    (sandbox.folder / "faces/train.rec").touch()
    (sandbox.folder / "saved.json").write_text('{"dataset": "100w", "max_update": 9}')
    monkeypatch.chdir(sandbox.folder)
    assert faces.parse(config_call(sandbox).split()).data.dataset == "synthetic"
    for words in ("--rec faces", "--rec=faces", "--config saved.json", "--config=saved.json"):
        assert config_call(sandbox, words) == words
        config = faces.parse(words.split())
        if "rec" in words:
            assert config == faces.resolve({"rec": ("faces",)})
        else:
            assert config.data.dataset == "100w"


@pytest.mark.parametrize("script", ["config.sh", "run.sh"])
def test_paths_are_relative_to_the_callers_folder(sandbox: Sandbox, script: str) -> None:
    sandbox.stub("python orterun", 'echo "$PWD $*" >>"$CALLS"\n')
    project, caller = sandbox.folder, sandbox.folder.with_name("caller's folder")
    caller.mkdir()
    (caller / "hosts").write_text("ip1 slots=3\n")
    sandbox.folder = caller
    sandbox.run(f"../{project.name}/{script}", "--rec", "faces", HOSTFILE="hosts")
    call = sandbox.calls.splitlines()[-1]
    assert call.startswith(f"{caller} ")
    program = f"{project}/train.py" if script == "config.sh" else f"bash {project}/config.sh"
    assert call.endswith(f"{program} --rec faces")


def test_config_in_other_circumstances(sandbox: Sandbox) -> None:
    # Programs find their modules with a safe path; where the settings fail, nothing is started.
    for status, said in ((0, "unset\nunset\n"), (2, "unset\n")):
        sandbox.stub("python", f'echo "${{PYTHONSAFEPATH-unset}}" >>"$CALLS"\nexit {status}\n')
        sandbox.run("config.sh", status=status, PYTHONSAFEPATH="1")
        assert sandbox.calls == said
    # The project's environment is used unless another one is active.
    sandbox.programs.mkdir(parents=True)
    write_program(sandbox.programs / "python", 'echo "from .venv" >>"$CALLS"\n')
    for active in ({}, {"VIRTUAL_ENV": "/elsewhere"}, {"CONDA_PREFIX": "/elsewhere"}):
        sandbox.run("config.sh", status=None, **active)
        assert ("from .venv" in sandbox.calls) == (not active)


def test_a_link_to_a_script_finds_the_project(sandbox: Sandbox) -> None:
    sandbox.stub("python", "")
    for script, error in (
        ("config.sh", ""),
        ("run.sh", "error: NP='x' is not a"),
        (SLURM_SCRIPT, "error: SLURM_JOB_ID is not set"),
    ):
        link = sandbox.folder.with_name(f"link to {Path(script).name}")
        link.symlink_to(sandbox.folder / script)
        assert sandbox.run(f"{link}", status=2 if error else 0, NP="x").stderr.startswith(error)


JOB: dict[str, Any]
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-3]", "SLURM_TASKS_PER_NODE": "8(x2),4"}
STEP = {"SLURM_STEP_NUM_TASKS": "20", "SLURM_STEP_TASKS_PER_NODE": "8(x2),4"}
TASK: dict[str, Any]
TASK = {**JOB, **STEP, "SLURM_PROCID": "17", "SLURM_LOCALID": "1", "SLURM_NODEID": "2"}
SCONTROL = '[[ $* == "show hostnames node[1-3]" ]] && printf "%s\\n" node1 node2 node3\n'


def test_in_an_allocation_of_slurm_mpirun_or_srun_starts_a_rank_for_each_task(
    sandbox: Sandbox,
) -> None:
    sandbox.stub("scontrol", SCONTROL)
    words = (SLURM_SCRIPT, "--max-update", "20")
    others: list[dict[str, Any]] = [{"NP": "2", "HOSTFILE": "none"}, {"SLURM_STEP_NUM_TASKS": "1"}]
    for extra in ({}, *others):
        sandbox.run(*words, **JOB, **extra)
        assert " -np 20 -H node1:8,node2:8,node3:4 " in sandbox.calls
        assert sandbox.calls.endswith(f"bash {sandbox.folder}/config.sh --max-update 20\n")
    sandbox.stub("python", SETTINGS)
    variables = sandbox.run(*words, **TASK, PMIX_RANK="17").stdout.splitlines()
    assert sandbox.calls.endswith("/train.py --dataset synthetic --max-update 20\n")
    assert sorted(variables) == [
        "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=4", "OMPI_COMM_WORLD_RANK=17",
        "OMPI_COMM_WORLD_SIZE=20", "OMPI_MCA_btl=^openib", "OMPI_MCA_pml=ob1",
        "OMP_NUM_THREADS=7",
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
        ({**JOB, "SLURM_STEP_NUM_TASKS": "a"}, "SLURM_STEP_NUM_TASKS='a' is not a number"),
        ({**JOB, "SLURM_STEP_NUM_TASKS": "2", "PMIX_RANK": "0"}, "SLURM_STEP_TASKS_PER_NODE is"),
    ],
)
def test_mistakes_with_slurm_are_one_line(
    sandbox: Sandbox, variables: dict[str, str], words: str
) -> None:
    sandbox.stub("scontrol", SCONTROL)
    assert sandbox.refusal(SLURM_SCRIPT, **variables).startswith(f"error: {words}")
    assert sandbox.calls == ""


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
    options = "--debug --network tiny --batch-size 4 --max-update 2 --models-root".split()
    mpirun, srun = Path(sys.executable).with_name("mpirun"), write_program(tmp_path / "srun", SRUN)
    finish(mpirun, "-np", 2, srun, SLURM_SCRIPT, *options, tmp_path / "models")
    logs = sorted(path.name for path in (tmp_path / "models/logs").iterdir())
    assert logs == ["rank-0000.log", "rank-0001.log"]
    assert (tmp_path / "models/checkpoints/update-00000002/rank-0001.bin").exists()
