"""What the shell scripts give to Open MPI, and what they refuse before; see ``test_mpirun``."""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest

from tests.setup.conftest import LAUNCHER, Sandbox
from tests.support.launch import ROOT

pytestmark = pytest.mark.thorough

HOROVODRUN = "setup-utils/launchers/horovodrun"
ENVIRONMENT = 'env >>"$CALLS"\necho "mpirun $*" >>"$CALLS"\n'


def run(sandbox: Sandbox, **variables: Any) -> str:
    """Run run.sh and return the arguments that it gives to mpirun."""
    sandbox.run("run.sh", "--max-update", "20", **variables)
    (call,) = re.findall("^mpirun .* (-np .*)", sandbox.calls, re.MULTILINE)
    return str(call)


def launch(sandbox: Sandbox, words: str, **variables: Any) -> str:
    """Run the launcher mpirun and return the calls of Open MPI's program."""
    sandbox.run(LAUNCHER, *words.split(), **variables)
    return sandbox.calls


def variables_sent(sandbox: Sandbox) -> list[str]:
    """Return what the one call of mpirun sends to ranks on other hosts."""
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
        assert run(sandbox, **names).startswith("-np 3 --hostfile /proc/")
        assert "\nfile ip1 slots=2|ip2 slots=1\n" in sandbox.calls
    assert run(sandbox, HOSTS="ip1:2", **names).startswith("-np 2 -H ip1:2 ")
    none = {"OMPI_MCA_orte_default_hostfile": "none"}
    assert run(sandbox, **none).startswith("-np 2 -H localhost:2 ")


@pytest.mark.parametrize("ranks", [8, 16])
def test_the_examples_of_hostfiles(sandbox: Sandbox, ranks: int) -> None:
    """At the place where InsightFace has them, by its command as well."""
    shutil.copytree(ROOT / "hosts", sandbox.folder / "hosts")
    file = f"hosts/host_{ranks}"
    assert run(sandbox, HOSTFILE=file).startswith(f"-np {ranks} --hostfile ")
    found = sandbox.calls_with("slots=")
    assert sum(map(int, re.findall(r"slots=(\d+)", found[-1]))) == ranks
    words = f"-np {ranks} -hostfile {file} --allow-run-as-root -bind-to none -map-by slot -mca pml "
    words += "ob1 -mca btl ^openib -mca btl_tcp_if_include eth0 -x PATH bash config.sh"
    launch(sandbox, words)
    assert sandbox.calls_with("slots=") == found


EACH = (LAUNCHER, "run.sh", HOROVODRUN)
TWO = {"HOSTS": "ip1:2,ip2:2"}


@pytest.mark.parametrize(
    ("commands", "variables", "reason"),
    [
        (EACH, {"HOST_TIMEOUT": "5"}, "HOST_TIMEOUT='5' is not a number of seconds"),
        (EACH, {"HOST_TIMEOUT": "2 minutes"}, "HOST_TIMEOUT='2 minutes' is not a number"),
        (EACH, {"NIC": "eth77"}, "NIC='eth77': "),
        (EACH, {"NIC": "../net/lo"}, "NIC='../net/lo': "),
        (["run.sh"], {"NIC": "l" * 300}, f"NIC='{'l' * 80}': "),
        (["run.sh"], {"NIC": "lo\n\x1b[31m"}, "NIC="),
        (["run.sh --restarts x\x1b[31m"], {}, "--restarts"),
        (["run.sh"], {"NP": "two"}, "NP='two' is not a number of ranks"),
        (["run.sh"], {"NP": "0"}, "NP='0' is not a number of ranks"),
        (["run.sh"], {"NP": "2\n3"}, "NP='2 3' is not a number of ranks"),
        (["run.sh"], {"HOSTS": "a\n", "HOSTFILE": "b"}, "HOSTS='a ' and HOSTFILE='b' both name"),
        (["run.sh --restarts 3"], {"HOSTS": "a:2", "NP": "4"}, "NP 4 is more ranks than the 2"),
        (["run.sh"], {"SEND_VARIABLES": "A=1"}, "'A' is not the name of a variable"),
        # A GPU's UUID names nothing on another host.
        (["run.sh"], {"CUDA_VISIBLE_DEVICES": "GPU-5fa2,GPU-77", **TWO},
         "error: CUDA_VISIBLE_DEVICES='GPU-5fa2,GPU-77' names GPUs of a "),
        (["run.sh"], {"CUDA_VISIBLE_DEVICES": "0,MIG-5fa2", "HOSTFILE": "hosts"},
         "error: CUDA_VISIBLE_DEVICES='0,MIG-5fa2' names GPUs of a "),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_variables_are_one_line(sandbox, commands, variables, reason) -> None:
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


def test_all_hosts_are_told_which_gpus_ranks_see(sandbox: Sandbox) -> None:
    """Unless Slurm tells each host its own."""
    names = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE"]
    for shown, others, passed in (
        ("2,3", TWO, names),
        ("", TWO, names),
        ("GPU-5fa2,GPU-77", {}, names),
        ("GPU-5fa2", {"SLURM_JOB_ID": "7", **TWO}, names[::2]),
    ):
        run(sandbox, **{**dict.fromkeys(names, shown), **others})
        assert sorted(set(variables_sent(sandbox)) & set(names)) == passed


def test_open_mpi_on_other_hosts(sandbox: Sandbox) -> None:
    """Its daemon runs under the guard, and with the prefix by which orterun was called here."""
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
    # mpirun finds its remote shell there.
    added = f":{sandbox.folder}/setup-utils/launchers" if name == "mpirun" else ""
    assert sandbox.calls.startswith(f"{sandbox.programs}:{sandbox.stubs}{added}: ")
    assert sandbox.calls.endswith(" -np 2 a b\n")


def test_a_folder_that_is_gone(sandbox: Sandbox) -> None:
    sandbox.stub("python", "")
    script = f'mkdir gone; cd gone; rm -r ../gone; bash "{sandbox.folder}/run.sh"'
    said = sandbox.run("-c", script, status=2).stderr
    assert "error: the current folder has been removed; start" in said
    assert sandbox.calls == ""
