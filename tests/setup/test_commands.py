"""What run.sh, config.sh, launchers and the script for Slurm call and refuse, how runs end."""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest

from tests.setup.conftest import Sandbox
from tests.support.launch import write_program
from training.config import faces

pytestmark = pytest.mark.thorough

LAUNCHER = "setup-utils/launchers/mpirun"
ENVIRONMENT = 'env >>"$CALLS"\necho "mpirun $*" >>"$CALLS"\n'


def run(sandbox: Sandbox, **variables: Any) -> str:
    """Run run.sh and return the arguments that it gives to mpirun."""
    sandbox.run("run.sh", "--max-update", "20", **variables)
    (call,) = re.findall("^mpirun .* (-np .*)", sandbox.calls, re.MULTILINE)
    return str(call)


def launch(sandbox: Sandbox, words: str, **variables: Any) -> str:
    sandbox.run(LAUNCHER, *words.split(), **variables)
    return sandbox.calls


def variables_sent(sandbox: Sandbox) -> list[str]:
    return re.findall(r" -x (\S+)", sandbox.calls)


def test_run_starts_ranks(sandbox: Sandbox) -> None:
    call = run(sandbox)
    assert call.startswith("-np 2 -H localhost:2 -bind-to none -map-by slot ")
    assert " -mca pml ob1 -mca btl ^openib" in call
    assert call.endswith(f"bash {sandbox.folder}/config.sh --max-update 20")
    assert variables_sent(sandbox) == ["PATH"]
    assert run(sandbox, NP="16", HOSTS="ip1:8,ip2:8").startswith("-np 16 -H ip1:8,ip2:8 ")
    (sandbox.folder / "own hosts").write_text("ip1 slots=2\nip2\n")
    for names in ({"HOSTFILE": "own hosts"}, {"OMPI_MCA_orte_default_hostfile": "own hosts"}):
        assert run(sandbox, **names).startswith("-np 3 -H ip1:2,ip2 ")
    assert run(sandbox, HOSTS="ip1:2", **names).startswith("-np 2 -H ip1:2 ")
    none = {"OMPI_MCA_orte_default_hostfile": "none"}
    assert run(sandbox, **none).startswith("-np 2 -H localhost:2 ")


EACH = [LAUNCHER, "run.sh", "setup-utils/launchers/horovodrun"]


def test_wrong_variables_are_one_line(sandbox) -> None:
    for commands, variables, reason in (
        (EACH, {"HOST_TIMEOUT": "5"}, "HOST_TIMEOUT='5' is not a number of seconds"),
        (EACH, {"NIC": "eth77"}, "NIC='eth77': "),
        (EACH, {"NIC": "../net/lo"}, "NIC='../net/lo': "),
        (["run.sh"], {"NIC": "lo\n\x1b[31m"}, "NIC="),
        (["run.sh --restarts x\x1b[31m"], {}, "--restarts"),
        (["run.sh"], {"NP": "2\n3"}, "NP='2 3' is not a number of ranks"),
        (["run.sh"], {"HOSTS": "a\n", "HOSTFILE": "b"}, "HOSTS='a ' and HOSTFILE='b' both name"),
        # A GPU's UUID names nothing on another host.
        (["run.sh"], {"CUDA_VISIBLE_DEVICES": "0,MIG-5fa2", "HOSTFILE": "hosts"},
         "error: CUDA_VISIBLE_DEVICES='0,MIG-5fa2' names GPUs of a "),
    ):  # fmt: skip
        for command in commands:
            said = sandbox.refusal(*command.split(" "), **variables)
            assert reason in said and "\x1b" not in said and sandbox.calls == ""


def test_choices_and_settings_reach_the_other_hosts(sandbox: Sandbox) -> None:
    run(sandbox, NETWORK="r50", NCCL_DEBUG="INFO", UNRELATED="x")
    assert variables_sent(sandbox) == ["NCCL_DEBUG", "NETWORK", "PATH"]
    sandbox.stub("orterun", ENVIRONMENT)
    run(sandbox, NIC="lo", HOROVOD_CONTROLLER="gloo")
    found = dict(re.findall("^([A-Z][A-Za-z_]+)=(.*)$", sandbox.calls, re.MULTILINE))
    names = {"NIC", "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"}
    assert names < {*variables_sent(sandbox)}
    for name in (*names, "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"):
        assert found[name] == "lo"
    # Ranks of run.sh connect by MPI.
    assert "HOROVOD_CONTROLLER" not in found


def test_open_mpi_on_other_hosts(sandbox: Sandbox) -> None:
    guard = f"bash {sandbox.folder}/setup-utils/launchers/remote-guard 120"
    agent = f"-mca orte_launch_agent {guard} env LD_LIBRARY_PATH=/a\\ b {sandbox.stubs}/orted"
    words = "-np 2 true"
    assert launch(sandbox, words, LD_LIBRARY_PATH="/a b").startswith(f"mpirun {agent} ")
    sandbox.stub("orterun orterun_wrapper", ENVIRONMENT)
    link = sandbox.folder / "link"
    link.symlink_to(sandbox.stubs)
    said = launch(sandbox, words, PATH=f"{link}:{sandbox.stubs}:/usr/bin:/bin")
    assert f"OPAL_PREFIX={link}\n" in said and f"env OPAL_PREFIX={link} {link}/orted" in said
    assert "plm_rsh_agent=remote-shell\n" in said and "plm_rsh_no_tree_spawn=1\n" in said
    said = launch(sandbox, words, OMPI_MCA_plm_rsh_agent="/etc/kubexec.sh")
    assert "plm_rsh_agent=/etc/kubexec.sh\n" in said and "no_tree_spawn" not in said
    (sandbox.stubs / "orterun").unlink()
    assert "Open MPI's orterun not found: run 'make env'" in sandbox.refusal("run.sh")


def test_bridges_of_containers_are_left_out_unless_interfaces_are_chosen(sandbox: Sandbox) -> None:
    sandbox.stub("orterun", ENVIRONMENT)
    for options, variables, leaves_out in (
        ("-mca btl ^openib", {}, True),
        ("-mca btl_tcp_if_include eth0", {}, False),
        ("", {"NIC": "lo"}, False),
        ("", {"OMPI_MCA_btl_tcp_if_include": "eth0"}, False),
    ):
        said = launch(sandbox, f"-np 2 {options} true", **variables)
        assert ("OMPI_MCA_btl_tcp_if_exclude=127.0.0.1/8,sppp,docker0" in said) == leaves_out


@pytest.mark.parametrize("name", ["mpirun", "horovodrun"])
def test_launchers_in_an_environment_find_it_by_themselves(sandbox: Sandbox, name: str) -> None:
    notes = 'echo "$PATH: $*" >>"$CALLS"\n'
    sandbox.stub("python orterun", notes)
    sandbox.programs.mkdir(parents=True)
    shutil.move(sandbox.stubs / "python", sandbox.programs)
    (sandbox.programs / name).symlink_to(f"../../setup-utils/launchers/{name}")
    sandbox.run("-c", f"{sandbox.programs}/{name} -np 2 'a b'")
    added = f":{sandbox.folder}/setup-utils/launchers" if name == "mpirun" else ""
    assert sandbox.calls.startswith(f"{sandbox.programs}:{sandbox.stubs}{added}: ")
    assert sandbox.calls.endswith(" -np 2 a b\n")


CRASHES = """\
echo "mpirun $*" >>"$CALLS"
read -r status rest <statuses
echo "$rest" >statuses
exit "$status"
"""


@pytest.fixture
def crashing(sandbox: Sandbox) -> Sandbox:
    sandbox.stub("orterun", CRASHES)
    sandbox.stub("sleep", 'echo "sleep $1" >>"$CALLS"\n')
    return sandbox


def restart(sandbox: Sandbox, ends: str, *options: str, status: int, **variables: str) -> str:
    """Run with an mpirun that ends with these statuses, to this one; returns the errors."""
    (sandbox.folder / "statuses").write_text(ends)
    words = ("run.sh", *options)
    return sandbox.run(*words, status=status, **variables).stderr


def test_run_starts_again_after_a_crash(crashing: Sandbox) -> None:
    restart(crashing, "1 137 75 0", "--restarts", "5", "--lr", "0.1", status=0)
    assert crashing.calls_with("sleep") == ["sleep 5", "sleep 10", "sleep 20"]
    starts = crashing.calls_with("mpirun")
    assert len(starts) == 4 and len(set(starts)) == 1
    assert starts[0].endswith("/config.sh --lr 0.1")
    restart(crashing, "1 1 9 9 9", "--restarts=2", status=9)
    assert len(crashing.calls_with("mpirun")) == 3
    restart(crashing, "9 0", status=9)
    # A user's error or a signal.
    for end in (0, 2, 143):
        restart(crashing, f"{end} 0", "--restarts", "3", status=end)
        assert len(crashing.calls.splitlines()) == 1
    # The hostfile is read again.
    (crashing.folder / "hosts").write_text("ip1 slots=2\nip2 slots=2\n")
    crashing.stub("sleep", "echo ip1 slots=2 >hosts\n")
    restart(crashing, "1 0", "--restarts", "1", status=0, HOSTFILE="hosts")
    assert re.findall(r" -np (\S+)", crashing.calls) == ["4", "2"]


# bash does not get over a signal while it reads <(:): that is read before there are traps.
PAUSE = "exec {never}<> <(:)\npause() { read -t $1 -u $never || :; }\n"
LAST = "for i in {1..200}; do pause 0.05; done\n"


def trap(signals: str, then: str = "") -> str:
    return "".join(f"trap 'echo {one} >>\"$CALLS\"; {then}' {one}\n" for one in signals.split())


@pytest.mark.parametrize(
    ("stub", "status", "signals"),
    [
        # The stub is mpirun and its ranks: on USR1 or USR2, it ends after its update.
        (trap("USR1 USR2", "exit 1") + f"kill -INT $PPID\n{LAST}", 130, "USR1"),
        (trap("USR1 USR2", "exit 1") + f"kill -TERM $PPID\n{LAST}", 143, "USR2"),
        # mpirun forwards to ranks that it has started, and to no others: the signal is repeated.
        (
            "trap 'echo lost >>\"$CALLS\"' USR2\nkill -TERM $PPID\npause 1\n"
            + trap("USR2", "exit 1") + LAST, 143, "lost USR2",
        ),
        # A later signal ends mpirun at once.
        (
            trap("TERM") + trap("USR1", "pause 2.1; kill -INT $PPID; pause 0.5; exit 1")
            + f"kill -INT $PPID\n{LAST}", 130, "USR1 TERM",
        ),
    ],
    ids=["INT", "TERM", "before the ranks", "later"],
)  # fmt: skip
def test_run_forwards_signals(sandbox: Sandbox, stub: str, status: int, signals: str) -> None:
    sandbox.stub("orterun", PAUSE + stub)
    sandbox.run("run.sh", "--restarts", "3", status=status)
    assert sandbox.calls.split() == signals.split()


SLURM_SCRIPT = "setup-utils/slurm.sh"
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
    assert config_call(sandbox, "--lr 0.5", LR="0.1") == "--dataset synthetic --lr 0.1 --lr 0.5"
    choices = {"DATASET": "emore", "NETWORK": "r50", "BATCH_SIZE": "32", "MODELS_ROOT": "m"}
    said = config_call(sandbox, "--rec faces", **choices)
    assert said == "--dataset emore --network r50 --batch-size 32 --models-root m --rec faces"


def test_data_of_the_user_replace_the_synthetic_set(sandbox: Sandbox, monkeypatch) -> None:
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


def test_config_uses_the_projects_environment_unless_another_one_is_active(sandbox) -> None:
    sandbox.programs.mkdir(parents=True)
    write_program(sandbox.programs / "python", 'echo "from .venv" >>"$CALLS"\n')
    for active in ({}, {"VIRTUAL_ENV": "/elsewhere"}, {"CONDA_PREFIX": "/elsewhere"}):
        sandbox.run("config.sh", status=None, **active)
        assert ("from .venv" in sandbox.calls) == (not active)


TASKS = "8(x2),4"
JOB: dict[str, Any] = {"SLURM_JOB_ID": "7", "SLURM_TASKS_PER_NODE": TASKS}
JOB["SLURM_JOB_NODELIST"] = "node[1-3]"
TASK = {**JOB, "SLURM_STEP_NUM_TASKS": "20", "SLURM_STEP_TASKS_PER_NODE": TASKS}
TASK |= {"SLURM_PROCID": "17", "SLURM_LOCALID": "1", "SLURM_NODEID": "2"}
SCONTROL = '[[ $* == "show hostnames node[1-3]" ]] && printf "%s\\n" node1 node2 node3\n'


def test_mpirun_or_srun_starts_a_rank_for_each_task_of_slurm(sandbox: Sandbox) -> None:
    sandbox.stub("scontrol", SCONTROL)
    words = (SLURM_SCRIPT, "--max-update", "20")
    for extra in ({}, {"NP": "2", "HOSTFILE": "none"}, {"SLURM_STEP_NUM_TASKS": "1"}):
        sandbox.run(*words, **{**JOB, **extra})
        assert " -np 20 -H node1:8,node2:8,node3:4 " in sandbox.calls
        assert sandbox.calls.endswith(f"bash {sandbox.folder}/config.sh --max-update 20\n")
    sandbox.stub("python", SETTINGS)
    variables = sandbox.run(*words, **{**TASK, "PMIX_RANK": "17"}).stdout.splitlines()
    assert sandbox.calls.endswith("/train.py --dataset synthetic --max-update 20\n")
    assert sorted(variables) == [
        "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=4", "OMPI_COMM_WORLD_RANK=17",
        "OMPI_COMM_WORLD_SIZE=20", "OMPI_MCA_btl=^openib", "OMPI_MCA_pml=ob1", "OMP_NUM_THREADS=7",
    ]  # fmt: skip


def test_mistakes_with_slurm_are_one_line(sandbox: Sandbox) -> None:
    sandbox.stub("scontrol", SCONTROL)
    for variables, words in (
        ({}, "SLURM_JOB_ID is not set: start it in an allocation"),
        ({**JOB, "SLURM_HET_SIZE": "2"}, "SLURM_HET_SIZE=2: each part of a heterogeneous job has"),
        (TASK, "srun has started 20 tasks without PMIx"),
        ({**JOB, "SLURM_TASKS_PER_NODE": "8(x)"}, r"'8(x)' are no tasks per node of Slurm"),
        ({**JOB, "SLURM_JOB_NODELIST": "other"}, "scontrol does not know the hosts"),
        ({**JOB, "SLURM_TASKS_PER_NODE": "8(x2)"}, "SLURM_TASKS_PER_NODE='8(x2)' has not a"),
        ({**JOB, "SLURM_STEP_NUM_TASKS": "a"}, "SLURM_STEP_NUM_TASKS='a' is not a number"),
    ):
        assert sandbox.refusal(SLURM_SCRIPT, **variables).startswith(f"error: {words}")
        assert sandbox.calls == ""
