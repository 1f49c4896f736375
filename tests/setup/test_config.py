"""How config.sh calls train.py, the script for Slurm, and where scripts look for files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.setup.conftest import SETTINGS, assert_one_line
from tests.support.launch import finish
from training.config import faces

if TYPE_CHECKING:
    from tests.setup.conftest import Sandbox

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]


def config_call(sandbox: Sandbox, typed: str = "", **variables: str) -> str:
    """Run config.sh and return how it calls train.py."""
    sandbox.stub("python", SETTINGS)
    result = sandbox.run("bash", "config.sh", *typed.split(), **variables)
    assert (result.returncode, result.stdout) == (0, "OMP_NUM_THREADS=7\n"), result.stderr
    settings, train = sandbox.calls.splitlines()
    assert settings == "python -m runtime.environment"
    return train.replace(f"python {sandbox.folder}/train.py ", "")


def test_choices_come_from_the_environment(sandbox: Sandbox) -> None:
    # Options win over variables: they come last.
    assert config_call(sandbox, "--lr 0.5", LR="0.1") == "--dataset synthetic --lr 0.1 --lr 0.5"
    choices = {"DATASET": "emore", "NETWORK": "r50", "BATCH_SIZE": "32", "MODELS_ROOT": "m"}
    assert config_call(sandbox, **choices) == (
        "--dataset emore --network r50 --batch-size 32 --models-root m"
    )
    said = config_call(sandbox, "--rec faces", DATASET="glint360k_8GPU")
    assert said == "--dataset glint360k_8GPU --rec faces"


def test_data_of_the_user_replace_the_synthetic_set(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``train.py`` understands it: nothing is left of the data and the recipe of synthetic."""
    (sandbox.folder / "faces").mkdir()
    (sandbox.folder / "faces/train.rec").touch()
    (sandbox.folder / "saved.json").write_text('{"dataset": "100w", "max_update": 9}')
    monkeypatch.chdir(sandbox.folder)
    assert faces.parse(config_call(sandbox).split()).data.dataset == "synthetic"
    for words in ("--rec faces", "--rec=faces", "--config saved.json", "--config=saved.json"):
        call = config_call(sandbox, words)
        assert call == words
        config = faces.parse(call.split())
        assert ("rec" not in words) == (config.data.dataset == "100w")
        assert "config" in words or config == faces.resolve({"rec": ("faces",)})


@pytest.mark.parametrize("script", ["config.sh", "run.sh"])
def test_paths_are_relative_to_the_callers_folder(sandbox: Sandbox, script: str) -> None:
    for name in ("python", "orterun"):
        sandbox.stub(name, '#!/usr/bin/env bash\necho "$PWD $*" >>"$CALLS"\n')
    caller = sandbox.folder.with_name("caller's folder")
    caller.mkdir()
    (caller / "hosts").write_text("ip1 slots=3\n")
    project, sandbox.folder = sandbox.folder, caller
    result = sandbox.run("bash", f"../{project.name}/{script}", "--rec", "faces", HOSTFILE="hosts")
    assert result.returncode == 0, result.stderr
    call = sandbox.calls.splitlines()[-1]
    assert call.startswith(f"{caller} ")
    program = f"{project}/train.py" if script == "config.sh" else f"bash {project}/config.sh"
    assert call.endswith(f"{program} --rec faces")


def test_config_in_other_circumstances(sandbox: Sandbox) -> None:
    # Programs find their modules with a safe path; where the settings fail, nothing is started.
    for status, said in ((0, "unset\nunset\n"), (2, "unset\n")):
        stub = f'#!/usr/bin/env bash\necho "${{PYTHONSAFEPATH-unset}}" >>"$CALLS"\nexit {status}\n'
        sandbox.stub("python", stub)
        assert sandbox.run("bash", "config.sh", PYTHONSAFEPATH="1").returncode == status
        assert sandbox.calls == said
    # The project's environment is used unless another one is active.
    programs = sandbox.folder / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(SETTINGS + 'echo "from .venv" >>"$CALLS"\n')
    (programs / "python").chmod(0o755)
    for active in ({}, {"VIRTUAL_ENV": "/elsewhere"}, {"CONDA_PREFIX": "/elsewhere"}):
        sandbox.run("bash", "config.sh", **active)
        assert ("from .venv" in sandbox.calls) == (not active)
    # A link to a script finds the project.
    sandbox.stub("python", SETTINGS)
    link = sandbox.folder.with_name("link.sh")
    for script, error in (
        ("config.sh", ""),
        ("run.sh", "error: NP='x' is not a"),
        (SLURM_SCRIPT, "error: SLURM_JOB_ID is not set"),
    ):
        link.unlink(missing_ok=True)
        link.symlink_to(sandbox.folder / script)
        result = sandbox.run("bash", str(link), NP="x")
        assert result.stderr.startswith(error)
        assert result.returncode == (2 if error else 0)


SLURM_SCRIPT = "setup-utils/slurm.sh"
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


def test_in_an_allocation_of_slurm_mpirun_or_srun_starts_a_rank_for_each_task(
    sandbox: Sandbox,
) -> None:
    sandbox.stub("scontrol", SCONTROL)
    for extra in ({}, {"NP": "2", "HOSTFILE": "none"}, {"SLURM_STEP_NUM_TASKS": "1"}):
        result = sandbox.run("bash", SLURM_SCRIPT, "--max-update", "20", **JOB, **extra)
        assert result.returncode == 0, result.stderr
        assert " -np 20 -H node1:8,node2:8,node3:4 " in sandbox.calls
        assert sandbox.calls.endswith(f"bash {sandbox.folder}/config.sh --max-update 20\n")
    sandbox.stub("python", PYTHON)
    result = sandbox.run("bash", SLURM_SCRIPT, "--max-update", "20", **TASK, PMIX_RANK="17")
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
        ({**JOB, "SLURM_STEP_NUM_TASKS": "a"}, "SLURM_STEP_NUM_TASKS='a' is not a number"),
        ({**JOB, "SLURM_STEP_NUM_TASKS": "2", "PMIX_RANK": "0"}, "SLURM_STEP_TASKS_PER_NODE is"),
    ],
)
def test_mistakes_with_slurm_are_one_line(
    sandbox: Sandbox, variables: dict[str, str], words: str
) -> None:
    sandbox.stub("scontrol", SCONTROL)
    assert_one_line(sandbox.run("bash", SLURM_SCRIPT, **variables), f"error: {words}")
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
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    options = "--debug --network tiny --batch-size 4 --max-update 2 --models-root".split()
    mpirun = Path(sys.executable).with_name("mpirun")
    finish(mpirun, "-np", 2, "bash", srun, SLURM_SCRIPT, *options, tmp_path / "models")
    logs = sorted(path.name for path in (tmp_path / "models/logs").iterdir())
    assert logs == ["rank-0000.log", "rank-0001.log"]
    assert (tmp_path / "models/checkpoints/update-00000002/rank-0001.bin").exists()
